"""The devices and the kernels that a service computes with, as its flags name them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.wire import dtype_named
from kernels.backends import load_ops
from kernels.ops import Ops
from paceline.errors import ConfigError


def choose_device(
    device: str, kernel_backend: str, *, dtype: str, num_threads: int | None = None
) -> tuple[torch.device, Ops]:
    """Of a service on one device. Raises ConfigError, naming the flags, for an unknown or missing device or a backend
    that does not run on it with this dtype."""
    (at,) = rank_devices(device)
    return at, choose_ops(at, kernel_backend, dtype=dtype, num_threads=num_threads)


def choose_ops(at: torch.device, kernel_backend: str, *, dtype: str, num_threads: int | None = None) -> Ops:
    """A GPU becomes the calling thread's current one. Raises ConfigError, naming the flags, for a backend that does not
    run there with this dtype."""
    if at.type == "cuda":
        torch.cuda.set_device(at)
    try:
        return load_ops(kernel_backend, at, dtype=dtype_named(dtype), num_threads=num_threads)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"--device {at}, --kernel-backend {kernel_backend}, --dtype {dtype}: {error}") from error


@contextmanager
def computing_on(device: torch.device) -> Iterator[None]:
    """For a thread that launches work there and wants no gradients: a GPU and its context are the thread's current
    ones, so that no call has to see to that."""
    if device.type == "cuda":
        if device.index is not None:
            torch.cuda.set_device(device)
        torch.cuda.current_stream().synchronize()  # set_device does nothing where it is the current one already
    with torch.inference_mode():
        yield


def rank_devices(device: str, *, base_gpu_id: int = 0, tp_size: int = 1) -> list[torch.device]:
    """The device of each rank. ``auto`` is cuda where there is a GPU, else cpu.

    ``cuda`` is one GPU a rank, from base_gpu_id on; ``cuda:N`` is that GPU, for one rank. Raises ConfigError, naming
    the flags, for anything else and for GPUs that are not there.
    """
    try:
        at = torch.device(_resolve(device))
    except RuntimeError as error:
        raise ConfigError(f"--device {device} is no device; it must be auto, cpu, cuda or cuda:N") from error
    if at.type != "cuda":
        if base_gpu_id:
            raise ConfigError(f"--base-gpu-id is {base_gpu_id}, but --device {device} is no GPU; leave it out")
        return [at] * tp_size
    if at.index is not None and (tp_size > 1 or base_gpu_id):
        raise ConfigError(
            f"--device {device} is one GPU, but --tp-size is {tp_size} and --base-gpu-id is {base_gpu_id}; "
            f"for GPUs {at.index} to {at.index + tp_size - 1} write --device cuda --base-gpu-id {at.index}"
        )
    first = base_gpu_id if at.index is None else at.index
    _check_gpus(device, first=first, count=tp_size)
    return [torch.device("cuda", first + rank) for rank in range(tp_size)]


def _resolve(device: str) -> str:
    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def _check_gpus(device: str, *, first: int, count: int) -> None:
    if not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        raise ConfigError(
            f"--device is {device}, but torch {torch.__version__}, {built}, sees no GPU; use --device cpu"
        )
    present = torch.cuda.device_count()
    if first + count > present:
        wanted = f"GPU {first}" if count == 1 else f"GPUs {first} to {first + count - 1}"
        raise ConfigError(
            f"--device {device} with --tp-size {count} takes {wanted}, but there are {present}: 0 to {present - 1}; "
            "lower --tp-size or --base-gpu-id, or show the process more GPUs (CUDA_VISIBLE_DEVICES)"
        )
