"""Staging: attention's tables from the host to fixed addresses on the device, in one asynchronous copy."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from kernels.ops import AttentionBatch, AttentionLimits, AttentionTables
from kernels.round_tables import LoadLayout, load_batch
from kernels.unit_rule import UnitRule
from kernels.upload import Upload

_ALIGNMENT = 256  # bytes; more than the widest load of a kernel


class Staging:
    """The tables lie one after the other in an Upload, the lists of pages last: they are copied up to their end. Its
    first num_ahead bytes are the caller's."""

    def __init__(
        self, limits: AttentionLimits, rule: UnitRule, *, max_units: int, num_ahead: int, device: torch.device
    ) -> None:
        requests = limits.max_requests
        sizes = dict(
            counts=4 * 3,
            q_indptr=4 * (requests + 1),
            prefix_len=4 * requests,
            local_len=4 * requests,
            is_causal=4 * requests,
            page_indptr=4 * (requests + 1),
            units=16 * max_units,
            ancestors=8 * limits.max_rows,
            page_ids=4 * limits.max_pages,
        )
        *starts, total = itertools.accumulate(map(_aligned, sizes.values()), initial=_aligned(num_ahead))
        self.upload = Upload(total, torch.uint8, device)
        self._layout = np.array([*LoadLayout._make([*starts, max_units])])
        self._rule = rule.numbers
        self._first, self._pages_start = starts[0], starts[-1]
        parts = {
            name: self.upload.tensor[start : start + size]
            for (name, size), start in zip(sizes.items(), starts, strict=True)
        }
        self.tables = AttentionTables(
            **{name: part.view(torch.int64 if name == "ancestors" else torch.int32) for name, part in parts.items()}
        )

    def load(self, batch: AttentionBatch, variant: int, *, start: int | None = None) -> int:
        """In the order of the current stream. Reads the batch at once. variant 0: the fastest. Returns the variant.

        start: what was staged from there on travels along; None: nothing was.
        """
        stage = self.upload.stage() if start is None else self.upload.staged
        variant = load_batch(stage, self._layout, self._rule, batch, variant)
        self.upload.send(self._pages_start + 4 * len(batch.page_ids), start=self._first if start is None else start)
        return variant


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
