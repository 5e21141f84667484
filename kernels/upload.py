"""Upload: a static tensor on the device that the host refills without waiting for its kernels."""

from __future__ import annotations

import numpy as np
import torch

from kernels.cuda_driver import CudaDriver, made_event

_STAGES = 2


class Upload:
    """A flat device tensor whose address never changes, and staging arrays on the host, pinned for a CUDA device.

    ``stage``, write, ``send``; one thread and one stream. The copy takes its place in stream order, so that what was
    launched before still reads the old content. To be let go of when all copies were made: PyTorch knows of none.
    """

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device) -> None:
        """dtype: one that numpy has."""
        is_cuda = device.type == "cuda"
        self.tensor = torch.zeros(size, dtype=dtype, device=device)
        self._stages = [torch.zeros(size, dtype=dtype, pin_memory=is_cuda) for _ in range(_STAGES)]
        self.arrays = [stage.numpy() for stage in self._stages]
        self._driver = CudaDriver(device) if is_cuda else None
        self._sent = [made_event() for _ in range(_STAGES)] if is_cuda else []
        self.turn = 0  # which of the arrays was staged last

    def stage(self) -> np.ndarray:
        """What to write next. Waits only where its last copy, some sends ago, has not been made yet."""
        self.turn = (self.turn + 1) % _STAGES
        if self._sent:
            self._sent[self.turn].synchronize()
        return self.staged

    @property
    def staged(self) -> np.ndarray:
        """What the last ``stage`` gave."""
        return self.arrays[self.turn]

    def send(self, stop: int, *, start: int = 0) -> None:
        """MUTATES entries [start, stop) of the tensor, as they were staged."""
        staged, tensor = self._stages[self.turn], self.tensor
        if self._driver is None:
            tensor[start:stop].copy_(staged[start:stop])
            return
        first, num_bytes = start * tensor.itemsize, (stop - start) * tensor.itemsize
        self._driver.upload(tensor.data_ptr() + first, staged.data_ptr() + first, num_bytes)
        self._driver.record(self._sent[self.turn].cuda_event)
