"""Staging: named integer arrays from the host to fixed addresses on the device, in one asynchronous copy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_ALIGNMENT = 256  # bytes; more than the widest load of a kernel


@dataclass(frozen=True, slots=True)
class Section:
    """An array of at most ``size`` elements of int32 or uint64."""

    name: str
    size: int
    dtype: type[np.generic]


class Staging:
    """Two pinned buffers take turns, so that one can be filled while the other is still being copied."""

    def __init__(self, sections: list[Section], device: torch.device) -> None:
        """The last section is copied up to what it holds, the others whole: it should be the largest."""
        starts = np.cumsum([0, *(_padded(section) for section in sections)]).tolist()
        self._memory = torch.zeros(starts[-1], dtype=torch.uint8, device=device)
        self._last = sections[-1]
        self._last_start: int = starts[-2]
        self.tensors: dict[str, Tensor] = {}
        for section, start in zip(sections, starts, strict=False):
            dtype = torch.int64 if section.dtype is np.uint64 else torch.int32
            part = self._memory[start : start + section.size * dtype.itemsize]
            self.tensors[section.name] = part.view(dtype)
        self._halves = [_Half(sections, starts, is_pinned=device.type == "cuda") for _ in range(2)]
        self._turn = 0

    def upload(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Copies each array to the start of its section, in the order of the current stream. Reads them at once."""
        half = self._halves[self._turn]
        self._turn ^= 1
        half.wait()
        views = half.views
        for name, array in arrays.items():
            views[name][: len(array)] = array
        stop = self._last_start + len(arrays[self._last.name]) * self._last.dtype().itemsize
        self._memory[:stop].copy_(half.memory[:stop], non_blocking=True)
        half.mark()


class _Half:
    """One buffer of the host. On the CPU the copy is over when it returns, and there is no event."""

    def __init__(self, sections: list[Section], starts: list[int], *, is_pinned: bool) -> None:
        self.memory = torch.zeros(starts[-1], dtype=torch.uint8, pin_memory=is_pinned)
        whole = self.memory.numpy()
        self.views = {
            section.name: whole[start : start + section.size * section.dtype().itemsize].view(section.dtype)
            for section, start in zip(sections, starts, strict=False)
        }
        self._copied = torch.cuda.Event() if is_pinned else None

    def wait(self) -> None:
        """Until the last copy out of it is over."""
        if self._copied is not None:
            self._copied.synchronize()

    def mark(self) -> None:
        if self._copied is not None:
            self._copied.record()


def _padded(section: Section) -> int:
    num_bytes = section.size * section.dtype().itemsize
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
