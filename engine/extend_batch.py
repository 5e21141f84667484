"""ExtendBatch: what many sessions ask of a drafter in one round, a column each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor

from engine.draft_batch import ExtendItem, ProposeParams
from engine.pages import HeldPages, pages_for
from engine.pool import HeadCache
from engine.wire import borrow_tensor
from kernels.round_tables import SessionRows
from paceline.rounds import RawTensor
from paceline.types import MAX_SCRATCH_NODES

FeaturePart: TypeAlias = "Tensor | RawTensor"  # a message's rows become a tensor where somebody computes with them


class HeldSeats(NamedTuple):
    """What sessions have for as long as they are open, a seat each. Columns over the seats."""

    page_ids: np.ndarray  # int32 [seats, pages], in order of position; past a session's capacity they mean nothing
    page_size: int
    capacity: np.ndarray  # int64: tokens that a session's pages hold
    seed: np.ndarray  # uint64
    temperature: np.ndarray  # fp64; 0 is greedy


@dataclass(frozen=True, slots=True, eq=False)
class ExtendBatch:
    """ExtendItems as columns [b]."""

    held: HeldSeats
    rows: SessionRows  # seats: whose pages and noise
    features: tuple[FeaturePart, ...]  # [rows, H] in parts
    shapes: np.ndarray  # int64 [4, b]: num_steps, eagle_topk, num_draft_tokens, min_path_permille; 0: no tree

    @classmethod
    def of(cls, items: Sequence[ExtendItem]) -> Self:
        """At least one item, all of one page size."""
        params = [item.propose for item in items]
        page_ids = np.zeros((len(items), max(len(item.table.page_ids) for item in items)), np.int32)
        for row, item in zip(page_ids, items, strict=True):
            row[: len(item.table.page_ids)] = item.table.page_ids
        shapes = [
            (0, 0, 0, 0) if p is None else (p.num_steps, p.eagle_topk, p.num_draft_tokens, p.min_path_permille)
            for p in params
        ]
        held = HeldSeats(
            page_ids=page_ids,
            page_size=items[0].table.page_size,
            capacity=np.array([item.table.capacity for item in items]),
            seed=np.array([0 if p is None else p.seed for p in params], np.uint64),
            temperature=np.array([0.0 if p is None else p.temperature for p in params]),
        )
        return cls(
            held=held,
            rows=SessionRows(
                page_ids=held.page_ids,
                seats=np.arange(len(items)),
                base_len=np.array([item.base_len for item in items]),
                num_rows=np.array([len(item.tokens) for item in items]),
                tokens=np.concatenate([item.tokens for item in items]),
                page_size=held.page_size,
            ),
            features=tuple(item.features for item in items),
            shapes=np.array(list(zip(*shapes, strict=True))),
        )

    def __len__(self) -> int:
        return len(self.rows.seats)

    def take(self, places: np.ndarray) -> ExtendBatch:
        """Some of the sessions, at least one. places: int64, ascending."""
        rows = self.rows
        stops = rows.num_rows.cumsum()
        starts = stops - rows.num_rows
        return ExtendBatch(
            held=self.held,
            rows=rows._replace(
                seats=rows.seats[places],
                base_len=rows.base_len[places],
                num_rows=rows.num_rows[places],
                tokens=np.concatenate([rows.tokens[starts[place] : stops[place]] for place in places]),
            ),
            features=rows_of(self.features, starts[places].tolist(), stops[places].tolist()),
            shapes=self.shapes.take(places, axis=1),
        )

    def items(self) -> list[ExtendItem]:
        """The sessions one by one, with features that may be computed with."""
        held, rows = self.held, self.rows
        stops = rows.num_rows.cumsum().tolist()
        features = joined(self.features)
        if features.data_ptr() % features.itemsize:  # as they lay in a message
            features = features.clone()
        items, start = [], 0
        for i, (seat, stop) in enumerate(zip(rows.seats.tolist(), stops, strict=True)):
            num_pages = int(held.capacity[seat]) // held.page_size
            num_steps, topk, num_nodes, permille = self.shapes[:, i].tolist()
            params = ProposeParams(
                num_steps,
                topk,
                num_nodes,
                seed=int(held.seed[seat]),
                temperature=float(held.temperature[seat]),
                min_path_permille=permille,
            )
            items.append(
                ExtendItem(
                    table=HeldPages(held.page_ids[seat, :num_pages], held.page_size),
                    base_len=int(rows.base_len[i]),
                    tokens=rows.tokens[start:stop],
                    features=features[start:stop],
                    propose=params if num_steps else None,
                )
            )
            start = stop
        return items


def spare_batch(cache: HeadCache) -> ExtendBatch:
    """One session whose row and tree lie on the cache's spare page."""
    one = np.ones(1, np.int64)
    num_pages = pages_for(1 + MAX_SCRATCH_NODES, cache.page_size)
    page_ids = np.full((1, num_pages), cache.num_pages, np.int32)
    capacity = num_pages * cache.page_size * one
    return ExtendBatch(
        held=HeldSeats(page_ids, cache.page_size, capacity, seed=np.zeros(1, np.uint64), temperature=np.zeros(1)),
        rows=SessionRows(page_ids, 0 * one, 0 * one, one, np.zeros(1, np.int32), cache.page_size),
        features=(),
        shapes=np.array([[1], [1], [2], [0]]),
    )


def tensor_of(part: FeaturePart) -> Tensor:
    """To be read only, and not computed with where it lies at an odd address."""
    return part if isinstance(part, Tensor) else borrow_tensor(part)


def joined(parts: Sequence[FeaturePart]) -> Tensor:
    """All rows in one tensor; a single part as it is."""
    return tensor_of(parts[0]) if len(parts) == 1 else torch.cat([tensor_of(part) for part in parts])


def rows_of(parts: Sequence[FeaturePart], starts: Sequence[int], stops: Sequence[int]) -> tuple[Tensor, ...]:
    """Rows [start, stop) of each pair, of all parts together, as views where there is one part. The pairs ascend."""
    whole = joined(parts)
    runs: list[list[int]] = []
    for start, stop in zip(starts, stops, strict=True):
        if runs and runs[-1][1] == start:
            runs[-1][1] = stop
        else:
            runs.append([start, stop])
    return tuple(whole[start:stop] for start, stop in runs)
