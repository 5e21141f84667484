"""What the passes of a walk hand to one another on the device."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from kernels.triton_ops.tiles import PART, SUB


class Partials:
    """Buffers of max_nodes rows of one vocabulary. A part is a run of PART sub-chunks of SUB tokens."""

    def __init__(self, device: torch.device, *, max_nodes: int, vocab_size: int) -> None:
        self.max_nodes = max_nodes
        self.vocab_size = vocab_size
        self.num_parts = triton.cdiv(vocab_size, SUB.value * PART.value)
        self.parts = triton.next_power_of_2(self.num_parts)
        self.subs = self.parts * PART.value
        self.sub_peaks = self._rows(device, self.subs, torch.float32)
        self.peaks = self._rows(device, self.parts, torch.float32)
        self.peak_ids = self._rows(device, self.parts, torch.int32)
        self.noisy = self._rows(device, self.parts, torch.float32)
        self.noisy_ids = self._rows(device, self.parts, torch.int32)
        self.masses = self._rows(device, self.parts, torch.int64)
        self.drawn = self._rows(device, 1, torch.int32)

    def _rows(self, device: torch.device, width: int, dtype: torch.dtype) -> Tensor:
        return torch.empty((self.max_nodes, width), dtype=dtype, device=device)
