"""Which device each service of a fleet on this machine computes on."""

from __future__ import annotations

import ctypes
import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.config import require
from paceline.errors import ConfigError

DEVICES = ("auto", "cpu", "cuda")
_CPU = "cpu"


@dataclass(frozen=True, slots=True)
class FleetSize:
    """How many services of each kind, and GPUs of a target."""

    num_targets: int
    num_drafts: int
    tp_size: int = 1


@dataclass(frozen=True, slots=True)
class DeviceFlags:
    """What the user says. Raises ConfigError, naming the flag of ``paceline serve``.

    A list of devices has one for each service, or fewer, and then they take turns; of a target over several GPUs it
    names the first.
    """

    device: str = "auto"  # of what the lists leave open; auto: cuda where there is a GPU, else cpu
    target_devices: tuple[str, ...] = ()
    draft_devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.device in DEVICES, "device", self.device, f"one of {', '.join(DEVICES)}")
        for name in ("target_devices", "draft_devices"):
            for device in getattr(self, name):
                require(device == _CPU or _index(device) is not None, name, device, "cpu or cuda:N, comma-separated")


@dataclass(frozen=True, slots=True)
class Placement:
    """The flags that tell each target and each draft its device."""

    targets: tuple[tuple[str, ...], ...]
    drafts: tuple[tuple[str, ...], ...]


def place(size: FleetSize, flags: DeviceFlags, *, num_gpus: int) -> Placement:
    """On GPUs the targets come first, each on tp_size GPUs of its own while there are enough; the drafts take the GPUs
    that are left, or else share the last one.

    Raises ConfigError where a target needs more GPUs than there are.
    """
    on_gpus = flags.device == "cuda" or (flags.device == "auto" and num_gpus > 0)
    targets, drafts = list(flags.target_devices), list(flags.draft_devices)
    if not on_gpus:
        targets, drafts = targets or [_CPU], drafts or [_CPU]
    if not targets:
        if num_gpus == 0:
            raise ConfigError(f"--device is {flags.device}, but CUDA finds no GPU on this machine; use --device cpu")
        if num_gpus < size.tp_size:
            raise ConfigError(
                f"--tp-size is {size.tp_size}, but this machine has {num_gpus} GPU(s) that CUDA can use; "
                "lower it, or use --device cpu"
            )
        targets = [f"cuda:{first}" for first in range(0, num_gpus - size.tp_size + 1, size.tp_size)]
    if not drafts:
        used = _gpus_of([targets[i % len(targets)] for i in range(size.num_targets)], size.tp_size)
        drafts = [f"cuda:{gpu}" for gpu in range(num_gpus) if gpu not in used] or [f"cuda:{max(num_gpus - 1, 0)}"]
    return Placement(
        tuple(_target_flags(targets[i % len(targets)], size.tp_size) for i in range(size.num_targets)),
        tuple(("--device", drafts[i % len(drafts)]) for i in range(size.num_drafts)),
    )


def count_gpus() -> int:
    """GPUs that CUDA offers to this process and its children, where the installed torch can use them."""
    try:
        if importlib.metadata.version("torch").endswith("+cpu"):
            return 0
        driver = ctypes.CDLL("libcuda.so.1")
    except (importlib.metadata.PackageNotFoundError, OSError):
        return 0
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def _target_flags(device: str, tp_size: int) -> tuple[str, ...]:
    if tp_size == 1 or device == _CPU:
        return ("--device", device)
    return ("--device", "cuda", "--base-gpu-id", str(_index(device)))


def _gpus_of(devices: Sequence[str], tp_size: int) -> set[int]:
    firsts = [index for index in map(_index, devices) if index is not None]
    return {first + rank for first in firsts for rank in range(tp_size)}


def _index(device: str) -> int | None:
    """N of cuda:N."""
    kind, _, number = device.partition(":")
    return int(number) if kind == "cuda" and number.isdecimal() else None
