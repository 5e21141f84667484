"""GrowthLayouts: where the tables of growing trees lie in a RoundArena, in buckets of sessions."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from engine.round_arena import growth_layout, growth_stop
from kernels.growth import GrowthShape
from kernels.ops import AttentionPlanner
from kernels.round_tables import GrowthLayout
from paceline.types import MAX_SCRATCH_NODES

_MAX_LAID_OUT = 4096  # that are remembered


@dataclass(frozen=True, slots=True, eq=False)
class LaidOut:
    """Growths of so many sessions within one shape, at fixed addresses."""

    shape: GrowthShape
    num_sessions: int
    variant: int  # of attention
    stop: int  # the byte behind the tables
    numbers: GrowthLayout
    array: np.ndarray  # int64: the numbers


class GrowthLayouts:
    """Of one planner, from byte ``start`` on."""

    def __init__(self, planner: AttentionPlanner, start: int) -> None:
        self._rule = planner.rule
        self._start = start
        self._max_rows, self._max_sessions = planner.limits.max_rows, planner.limits.max_requests
        self._laid_out: dict[tuple[GrowthShape, int], LaidOut] = {}
        self._bucket_sizes: dict[int, list[int]] = {}  # by the largest

    @staticmethod
    def num_bytes(planner: AttentionPlanner) -> int:
        """Of any."""
        rows, sessions = planner.limits.max_rows, planner.limits.max_requests
        return growth_stop(
            growth_layout(planner.rule, sessions, topk=-(-rows // sessions), num_scratch=MAX_SCRATCH_NODES)
        )

    def max_group(self, shape: GrowthShape) -> int:
        """Sessions that grow together at most."""
        return max(1, min(self._max_sessions, self._max_rows // shape.topk))

    def buckets(self, shape: GrowthShape) -> list[int]:
        """Numbers of sessions, ascending, the last is max_group."""
        most = self.max_group(shape)
        buckets = self._bucket_sizes.get(most)
        if buckets is None:
            buckets = self._bucket_sizes[most] = [*(2**i for i in range(most.bit_length()) if 2**i < most), most]
        return buckets

    def of(self, shape: GrowthShape, count: int) -> LaidOut:
        """The smallest bucket of at least so many sessions, which are at most max_group."""
        buckets = self.buckets(shape)
        num_sessions = buckets[bisect_left(buckets, count)]
        laid_out = self._laid_out.get((shape, num_sessions))
        if laid_out is None:
            laid_out = self._lay_out(shape, num_sessions)
            if len(self._laid_out) < _MAX_LAID_OUT:
                self._laid_out[shape, num_sessions] = laid_out
        return laid_out

    def _lay_out(self, shape: GrowthShape, num_sessions: int) -> LaidOut:
        numbers = growth_layout(
            self._rule, num_sessions, topk=shape.topk, num_scratch=shape.num_scratch, start=self._start
        )
        variant = self._rule.rows_for(shape.topk)
        return LaidOut(shape, num_sessions, variant, growth_stop(numbers), numbers, np.array([*numbers]))
