"""The door to the C extension: finds it, checks what torch hands it, and passes addresses on."""

from __future__ import annotations

import logging
from types import ModuleType

import torch
from torch import Tensor

_LOG = logging.getLogger(__name__)
_DTYPES = (torch.bfloat16, torch.float32)


class NativeKernels:
    """The kernels of one instruction set. Thread-safe: it holds no buffers.

    ``isa`` is a name out of the extension's ``isas()``; None takes the best that this CPU runs.
    """

    def __init__(self, module: ModuleType, *, isa: str | None = None) -> None:
        names = module.isas()
        if isa is not None and isa not in names:
            raise ValueError(f"instruction set {isa!r} does not run here; choose one of {', '.join(names)}")
        self.isa: str = names[0] if isa is None else isa
        self._isa = names.index(self.isa)
        self._linear = module.linear

    def linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out_dtype: torch.dtype | None = None
    ) -> Tensor:
        """x [rows, in] @ weight[out, in].T + bias -> [rows, out] of out_dtype (None: x's), bf16 or fp32.

        x, weight and bias share one dtype, bf16 or fp32, and are summed in fp32. A row's result is the same bits
        whatever other rows are there, however many, and however many threads.
        """
        rows, width = x.shape
        num_out = weight.shape[0]
        dtype = x.dtype
        out = torch.empty((rows, num_out), dtype=out_dtype or dtype)
        if not x.is_contiguous():
            x = x.contiguous()
        assert dtype == weight.dtype and dtype in _DTYPES and weight.shape[1] == width and weight.is_contiguous()
        assert bias is None or (bias.dtype == dtype and bias.shape == (num_out,) and bias.is_contiguous())
        self._linear(
            self._isa,
            x.data_ptr(),
            weight.data_ptr(),
            0 if bias is None else bias.data_ptr(),
            out.data_ptr(),
            rows,
            num_out,
            width,
            dtype == torch.bfloat16,
            out.dtype == torch.bfloat16,
            torch.get_num_threads(),
        )
        return out


def load_native() -> NativeKernels | None:
    """The extension's kernels, or None (and one log line) where it was not built or does not load."""
    try:
        from kernels.cpu_ops import _native  # type: ignore[attr-defined]  # after torch, whose OpenMP it takes
    except ImportError as error:
        _LOG.warning(
            "CPU kernels are off, torch computes instead (slower): %s. Install a C compiler and reinstall.", error
        )
        return None
    kernels = NativeKernels(_native)
    _LOG.info("CPU kernels: %s, %d threads", kernels.isa, torch.get_num_threads())
    return kernels
