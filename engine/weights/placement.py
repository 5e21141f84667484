"""Placement: where a small tensor lies inside a large one, and what surrounds it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Axis:
    """Where each index of a small axis goes on a large one."""

    size: int  # of the large axis
    places: Tensor  # [small size] int64, distinct
    reserved: Tensor  # int64, the places and the indices beside them that must stay zero

    @classmethod
    def prefix(cls, small: int, large: int) -> Self:
        """The first indices of the large axis."""
        places = torch.arange(small)
        return cls(large, places, places)

    @classmethod
    def heads(cls, heads: Tensor, dims: Tensor, *, num_heads: int, head_dim: int) -> Self:
        """Small head j goes to heads[j] of num_heads, its dimension t to dims[t] of head_dim."""
        places = (heads[:, None] * head_dim + dims).flatten()
        reserved = (heads[:, None] * head_dim + torch.arange(head_dim)).flatten()
        return cls(num_heads * head_dim, places, reserved)

    def repeated(self, count: int) -> Axis:
        """count such axes, one after another."""
        starts = torch.arange(count)[:, None] * self.size
        return Axis(count * self.size, (starts + self.places).flatten(), (starts + self.reserved).flatten())


class Filler(Enum):
    """What a large tensor holds where nothing is placed: RANDOM leaves the reserved rows zero."""

    ZERO = "zero"
    ONE = "one"
    RANDOM = "random"


@dataclass(frozen=True, slots=True)
class Placement:
    """columns is None for a vector."""

    rows: Axis
    columns: Axis | None = None
    scale: float = 1.0
    filler: Filler = Filler.ZERO

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the large tensor."""
        return (self.rows.size,) if self.columns is None else (self.rows.size, self.columns.size)

    def build(self, small: Tensor | None, *, dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
        """The large tensor, of dtype on device; small (fp32, any device) is scaled, then rounded once.

        Where small is None nothing is placed and all is filler. The random values depend on seed and device.
        """
        large = torch.empty(self.shape, dtype=dtype, device=device)
        self._fill(large, seed)
        if small is None:
            return large
        values = (small.to(device) * self.scale).to(dtype)
        rows = self.rows.places.to(device)
        if self.columns is None:
            large[rows] = values
            return large
        large.index_fill_(0, self.rows.reserved.to(device), 0)
        large[rows[:, None], self.columns.places.to(device)] = values
        return large

    def _fill(self, large: Tensor, seed: int) -> None:
        if self.filler is Filler.RANDOM:
            bound = math.sqrt(3 / large.shape[-1])  # of variance 1 / inputs: what passes it keeps its size
            large.uniform_(-bound, bound, generator=torch.Generator(large.device).manual_seed(seed))
        else:
            large.fill_(1 if self.filler is Filler.ONE else 0)
