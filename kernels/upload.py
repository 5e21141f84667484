"""Upload: a static tensor on the device that the host refills without waiting for its kernels."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_STAGES = 2
_MAX_PARTS = 1024  # slices that are kept: a slice of a tensor takes about as long as the copy's launch
_GRANULE = 1024  # bytes of a flat Upload that are copied at least, so that lengths which differ by little share a slice


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
        self._arrays = [] if dtype is torch.bfloat16 else [stage.numpy() for stage in self.stages]
        self._parts: dict[tuple[int, int, int], tuple[Tensor, Tensor]] = {}
        self._granule = max(1, _GRANULE // dtype.itemsize) if len(shape) == 1 else 1
        self._turn = 0

    def stage(self) -> Tensor:
        """The staging tensor to write next. Waits only where its last copy, some sends ago, has not been made yet."""
        self._turn = (self._turn + 1) % _STAGES
        if self._sent:
            self._sent[self._turn].synchronize()
        return self.stages[self._turn]

    def stage_array(self) -> np.ndarray:
        """``stage`` as numpy sees it. Not of bfloat16, which numpy does not have."""
        self.stage()
        return self._arrays[self._turn]

    def send(self, stop: int, *, start: int = 0) -> None:
        """MUTATES entries [start, stop) of the first dimension, as they were staged; those of a flat Upload that follow
        may change as well."""
        target, staged = self._part(-(-stop // self._granule) * self._granule, start)
        target.copy_(staged, non_blocking=True)
        if self._sent:
            self._sent[self._turn].record()

    def _part(self, stop: int, start: int) -> tuple[Tensor, Tensor]:
        """Entries of the tensor and of what is staged."""
        key = self._turn, start, stop
        part = self._parts.get(key)
        if part is None:
            if len(self._parts) == _MAX_PARTS:
                self._parts.clear()
            part = self._parts[key] = self.tensor[start:stop], self.stages[self._turn][start:stop]
        return part
