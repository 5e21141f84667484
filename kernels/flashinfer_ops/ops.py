"""FlashInferOps: the Triton backend with FlashInfer's attention."""

from __future__ import annotations

from kernels.triton_ops.ops import TritonOps


class FlashInferOps(TritonOps):
    """Fulfils ``kernels.ops.Ops`` on a CUDA device."""

    name = "flashinfer"
