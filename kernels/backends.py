"""Which backend fulfils the op contract: chosen once, by name, and passed down as an object."""

from __future__ import annotations

import torch

from kernels.ops import Ops
from kernels.reference.ops import ReferenceOps

BACKENDS = ("auto", "reference")


def load_ops(name: str, device: torch.device | str) -> Ops:
    """The backend of that name on that device; ``auto`` is the fastest that runs there. Raises ValueError."""
    if name not in BACKENDS:
        raise ValueError(f"the backend is {name!r}; it must be one of {', '.join(BACKENDS)}")
    return ReferenceOps(device)
