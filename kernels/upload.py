"""Upload: a static tensor on the device that the host refills without waiting for its kernels."""

from __future__ import annotations

import torch

_STAGES = 2


class Upload:
    """A device tensor whose address never changes, and staging tensors on the host, pinned for a CUDA device.

    ``stage`` (one of ``stages``), write, ``send``; one thread and one stream. The copy takes its place in stream
    order, so that what was launched before still reads the old content.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        is_cuda = device.type == "cuda"
        self.tensor = torch.zeros(shape, dtype=dtype, device=device)
        self.stages = [torch.zeros(shape, dtype=dtype, pin_memory=is_cuda) for _ in range(_STAGES)]
        self._sent = [torch.cuda.Event() for _ in range(_STAGES)] if is_cuda else []
        self._turn = 0

    def stage(self) -> torch.Tensor:
        """The staging tensor to write next. Waits only where its last copy, some sends ago, has not been made yet."""
        self._turn = (self._turn + 1) % _STAGES
        if self._sent:
            self._sent[self._turn].synchronize()
        return self.stages[self._turn]

    def send(self, count: int) -> None:
        """MUTATES the first ``count`` entries of the first dimension, as they were staged."""
        self.tensor[:count].copy_(self.stages[self._turn][:count], non_blocking=True)
        if self._sent:
            self._sent[self._turn].record()
