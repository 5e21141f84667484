"""RoundArena: all that a draft's round reads on the device, refilled by one copy."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kernels.ops import AttentionTables
from kernels.round_tables import NUM_EXTEND_COLUMNS, NUM_GROWTH_COLUMNS, ExtendLayout, GrowthLayout
from kernels.unit_rule import UnitRule
from kernels.upload import Upload

ALIGNMENT = 128  # bytes of a section: kernels are compiled for aligned addresses


class RoundArena:
    """Features and tables of committed rows end at the ``middle``; tables of growing trees, then lists of pages, begin
    there. So each layout has fixed addresses, whatever the other's size is, and both lie side by side.

    ``stage``, fill, ``send``: as an Upload.
    """

    def __init__(self, *, before: int, behind: int, device: torch.device) -> None:
        """before, behind: bytes on either side of the middle, at most."""
        self.middle = aligned(before)
        self._upload = Upload(self.middle + aligned(behind), torch.uint8, device)

    def stage(self) -> np.ndarray:
        """uint8: what to write next. Waits only where its last copy, some sends ago, has not been made yet."""
        return self._upload.stage()

    def send(self, start: int, stop: int) -> None:
        """MUTATES these bytes on the device, in stream order."""
        self._upload.send(stop, start=start)

    def int64(self, start: int, count: int) -> Tensor:
        """So many values from a byte on, on the device."""
        return self.part(start, 8 * count, torch.int64)

    def int32(self, start: int, count: int) -> Tensor:
        """So many values from a byte on, on the device."""
        return self.part(start, 4 * count, torch.int32)

    def part(self, start: int, num_bytes: int, dtype: torch.dtype) -> Tensor:
        """Flat, on the device."""
        return self._upload.tensor[start : start + num_bytes].view(dtype)

    def attention_tables(
        self, layout: ExtendLayout | GrowthLayout, size: int, *, local_len: Tensor, is_causal: Tensor, ancestors: Tensor
    ) -> AttentionTables:
        """Of up to ``size`` requests: what the layout has, and what lies elsewhere."""
        return AttentionTables(
            counts=self.int32(layout.counts, 3),
            units=self.int32(layout.units, 4 * layout.max_units),
            q_indptr=self.int32(layout.q_indptr, size + 1),
            prefix_len=self.int32(layout.prefix_len, size),
            local_len=local_len,
            is_causal=is_causal,
            ancestors=ancestors,
            page_indptr=self.int32(layout.page_indptr, size + 1),
            page_ids=self.page_ids,
        )

    @property
    def page_ids(self) -> Tensor:
        """int32: from the middle to the end. Lists of pages are counted from its beginning."""
        return self._upload.tensor[self.middle :].view(torch.int32)


def extend_layout(rule: UnitRule, bucket: int, *, end: int = 0) -> ExtendLayout:
    """Of a bucket of rows, so that the last section ends at byte ``end``; -columns bytes long where that is 0."""
    most = max(rule.max_units(bucket, rows, max_requests=bucket) for rows in rule.rows)
    sizes = (
        8 * NUM_EXTEND_COLUMNS * bucket,
        4 * 3,
        4 * (bucket + 1),
        4 * bucket,
        4 * bucket,
        4 * (bucket + 1),
        16 * most,
    )
    starts = _starts(sizes, end - sum(map(aligned, sizes)))
    return ExtendLayout._make([bucket, *starts[:-1], most])


def growth_layout(rule: UnitRule, num_sessions: int, *, topk: int, num_scratch: int, start: int = 0) -> GrowthLayout:
    """Of trees of one layout, from byte ``start`` on."""
    most = max(rule.max_units(num_sessions * topk, rows, max_requests=num_sessions) for rows in rule.rows)
    sizes = (
        8 * (NUM_GROWTH_COLUMNS + num_scratch) * num_sessions,
        4 * 3,
        4 * (num_sessions + 1),
        4 * num_sessions,
        4 * (num_sessions + 1),
        16 * most,
    )
    return GrowthLayout._make([num_sessions, topk, num_scratch, *_starts(sizes, start)[:-1], most])


def growth_stop(layout: GrowthLayout) -> int:
    """The byte behind it."""
    return aligned(layout.units + 16 * layout.max_units)


def aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def _starts(sizes: tuple[int, ...], start: int) -> list[int]:
    """Of each section, and the end of the last."""
    starts = [start]
    for size in sizes:
        starts.append(starts[-1] + aligned(size))
    return starts
