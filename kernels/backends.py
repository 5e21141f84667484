"""Which backend fulfils the op contract: chosen once, by name, and passed down as an object."""

from __future__ import annotations

import torch

from kernels.cpu_ops.ops import CpuOps
from kernels.ops import Ops
from kernels.reference.ops import ReferenceOps

BACKENDS = ("auto", "cpu", "reference")


def load_ops(name: str, device: torch.device | str) -> Ops:
    """The backend of that name on that device. ``auto`` is the fastest that runs there.

    Raises ValueError for an unknown name, and for ``cpu`` on another device.
    """
    device = torch.device(device)
    if name not in BACKENDS:
        raise ValueError(f"the backend is {name!r}; it must be one of {', '.join(BACKENDS)}")
    if name == "cpu" and device.type != "cpu":
        raise ValueError(f"the backend cpu does not run on {device}; choose auto or reference")
    if name != "reference" and device.type == "cpu":
        return CpuOps()
    return ReferenceOps(device)
