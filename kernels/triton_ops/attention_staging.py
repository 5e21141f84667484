"""Staging: named integer arrays from the host to fixed addresses on the device, in one asynchronous copy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.upload import Upload

_ALIGNMENT = 256  # bytes; more than the widest load of a kernel


@dataclass(frozen=True, slots=True)
class Section:
    """An array of at most ``size`` elements of int32 or uint64."""

    name: str
    size: int
    dtype: type[np.generic]


class Staging:
    """The sections lie one after the other in an Upload."""

    def __init__(self, sections: list[Section], device: torch.device) -> None:
        """The last section is copied up to what it holds, the others whole: it should be the largest."""
        starts = np.cumsum([0, *(_padded(section) for section in sections)]).tolist()
        self._upload = Upload((starts[-1],), torch.uint8, device)
        self._last = sections[-1]
        self._last_start: int = starts[-2]
        self.tensors: dict[str, Tensor] = {}
        self._views: dict[int, dict[str, np.ndarray]] = {stage.data_ptr(): {} for stage in self._upload.stages}
        for section, start in zip(sections, starts, strict=False):
            part = slice(start, start + section.size * section.dtype().itemsize)
            dtype = torch.int64 if section.dtype is np.uint64 else torch.int32
            self.tensors[section.name] = self._upload.tensor[part].view(dtype)
            for stage in self._upload.stages:
                self._views[stage.data_ptr()][section.name] = stage.numpy()[part].view(section.dtype)

    def upload(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Copies each array to the start of its section, in the order of the current stream. Reads them at once."""
        views = self._views[self._upload.stage().data_ptr()]
        for name, array in arrays.items():
            views[name][: len(array)] = array
        self._upload.send(self._last_start + len(arrays[self._last.name]) * self._last.dtype().itemsize)


def _padded(section: Section) -> int:
    num_bytes = section.size * section.dtype().itemsize
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
