"""OneShotSum: the sum of a small tensor over the GPUs of one host, by one kernel."""

from __future__ import annotations

import logging

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
from torch import Tensor

# Up to these many bytes one kernel that reads every peer's tensor beats NCCL, by the number of GPUs; their order of
# summation is the same on every rank for these numbers alone. Measured by `python -m bench.gpu_all_reduce`.
MOST_BYTES = {2: 1 << 20, 4: 512 << 10, 8: 256 << 10}
_DTYPES = (torch.bfloat16, torch.float32)
_log = logging.getLogger(__name__)


class OneShotSum:
    """Each rank copies its tensor to memory that all can read, meets the others, and adds up what lies there.

    Owns that memory. It can be captured in a CUDA graph. Every rank gets the same bits. No NVLink multicast.
    """

    def __init__(self, device: torch.device, *, most_bytes: int) -> None:
        """To be made by all ranks of torch.distributed's default group at once."""
        self._most_bytes = most_bytes
        world = dist.group.WORLD
        assert world is not None
        self._group = world.group_name
        self._buffer = symmetric_memory.empty(most_bytes, dtype=torch.uint8, device=device)
        symmetric_memory.rendezvous(self._buffer, self._group)
        self._buffers = {dtype: self._buffer.view(dtype) for dtype in _DTYPES}

    def takes(self, x: Tensor) -> bool:
        """The kernel reads 16 bytes at once, of these types."""
        return 0 < x.nbytes <= self._most_bytes and x.nbytes % 16 == 0 and x.dtype in self._buffers

    def sum(self, x: Tensor) -> Tensor:
        """x: contiguous, one that it takes. Mutates nothing."""
        shared = self._buffers[x.dtype][: x.numel()].view(x.shape)
        total: Tensor = torch.ops.symm_mem.one_shot_all_reduce_copy(shared, x, "sum", self._group)
        return total


def one_shot_sum(device: torch.device, *, most_bytes: int | None = None) -> OneShotSum | None:
    """For all ranks of the default group, or None where its GPUs cannot read each other's memory.

    most_bytes None takes the measured bound. All ranks call it together.
    """
    size = dist.get_world_size()
    bound = MOST_BYTES.get(size, 0) if most_bytes is None else most_bytes
    devices = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
    dist.all_gather(devices, torch.tensor([device.index]))
    others = {int(other) for other in devices} - {device.index}
    reaches = all(torch.cuda.can_device_access_peer(device.index, other) for other in others)
    all_reach = torch.tensor([int(reaches)])
    dist.all_reduce(all_reach, dist.ReduceOp.MIN)
    if bound and not int(all_reach):
        _log.warning("the GPUs of the ranks cannot read each other's memory; NCCL sums everything")
    return OneShotSum(device, most_bytes=bound) if bound and int(all_reach) else None
