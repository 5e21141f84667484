"""WeightLoader: this rank's share of each weight, checked against the config and copied to its place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.tp import TpGroup, shard
from engine.weights.source import WeightSource
from paceline.errors import ModelLoadError


class WeightLoader:
    """Each call allocates its result once, of dtype on device, and reads one stored tensor at a time into it.

    Raises ModelLoadError, naming file and tensor, where a shape is not the one that the config implies.
    """

    def __init__(self, source: WeightSource, *, dtype: torch.dtype, device: torch.device, tp: TpGroup) -> None:
        self.source = source
        self.dtype = dtype
        self.device = device
        self.tp = tp
        self.num_bytes = 0  # allocated so far

    def replicated(self, name: str, shape: Sequence[int]) -> Tensor:
        """The whole tensor, on every rank."""
        weight = self._allocate(*shape)
        weight.copy_(self._read(name, shape))
        return weight

    def selected(self, name: str, ids: Tensor, shape: Sequence[int]) -> Tensor:
        """The rows ids (int64) of a tensor of that shape, on every rank."""
        weight = self._allocate(len(ids), *shape[1:])
        whole = self._read(name, shape)
        weight.copy_(whole.index_select(0, ids.to(whole.device)))
        return weight

    def rows(self, parts: Sequence[tuple[str, int]], *columns: int) -> Tensor:
        """This rank's rows of each (name, total rows), one part under the other: [rows, *columns]."""
        ranges = [shard(total, self.tp.rank, self.tp.size) for _, total in parts]
        fused = self._allocate(sum(stop - start for start, stop in ranges), *columns)
        at = 0
        for (name, total), (start, stop) in zip(parts, ranges, strict=True):
            fused[at : at + stop - start].copy_(self._read(name, (total, *columns))[start:stop])
            at += stop - start
        return fused

    def columns(self, name: str, num_rows: int, total: int) -> Tensor:
        """This rank's columns of a [num_rows, total] tensor."""
        start, stop = shard(total, self.tp.rank, self.tp.size)
        part = self._allocate(num_rows, stop - start)
        part.copy_(self._read(name, (num_rows, total))[:, start:stop])
        return part

    def _allocate(self, *shape: int) -> Tensor:
        weight = torch.empty(shape, dtype=self.dtype, device=self.device)
        self.num_bytes += weight.nbytes
        return weight

    def _read(self, name: str, shape: Sequence[int]) -> Tensor:
        found = self.source.shape(name)
        if found != tuple(shape):
            raise ModelLoadError(
                f"{self.source.origin}: {name} has shape {list(found)}, the config says {list(shape)}; "
                "config and weights are not of one model"
            )
        return self.source.get(name, self.dtype)
