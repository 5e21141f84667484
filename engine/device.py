"""The device and the kernels that a service computes with, as its flags name them."""

from __future__ import annotations

import torch

from kernels.backends import load_ops
from kernels.ops import Ops
from paceline.errors import ConfigError


def choose_device(device: str, kernel_backend: str, *, num_threads: int | None = None) -> tuple[torch.device, Ops]:
    """Raises ConfigError, naming the flags, for an unknown device or a backend that does not run on it."""
    try:
        at = torch.device(device)
        return at, load_ops(kernel_backend, at, num_threads=num_threads)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"--device {device}, --kernel-backend {kernel_backend}: {error}") from error
