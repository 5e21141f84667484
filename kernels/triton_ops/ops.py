"""TritonOps: the reference ops with Triton kernels in their place."""

from __future__ import annotations

from kernels.reference.ops import ReferenceOps


class TritonOps(ReferenceOps):
    """Fulfils ``kernels.ops.Ops`` on a CUDA device, and on the CPU where Triton interprets its kernels, for tests.

    No op of a step waits for the device or allocates outside torch's caching allocator, so that each can be captured
    in a CUDA graph.
    """

    name = "triton"

    @property
    def supports_graphs(self) -> bool:
        return self.device.type == "cuda"
