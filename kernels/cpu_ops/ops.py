"""CpuOps: the reference ops with the C kernels in place of torch where these are built."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu_ops.native import NativeKernels, load_native
from kernels.reference.ops import ReferenceOps


class CpuOps(ReferenceOps):
    """Fulfils ``kernels.ops.Ops`` on the CPU, in bf16 and fp32.

    Every op's result for a row depends on that row alone, bit for bit. Without the extension it is ReferenceOps.
    """

    name = "cpu"

    def __init__(self, native: NativeKernels | None = None) -> None:
        """native: the kernels to use; None takes ``load_native()``'s."""
        super().__init__("cpu")
        self._native = load_native() if native is None else native

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if self._native is None:
            return super().linear(x, weight, bias)
        return self._native.linear(x, weight, bias)
