"""ExtendBatch: what many sessions ask of a drafter in one round, a column each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from engine.draft_batch import ExtendItem, ProposeParams
from engine.pages import HeldPages


class Noise(NamedTuple):
    """How each session's candidates are ranked. Columns [b]."""

    seed: np.ndarray  # uint64
    temperature: np.ndarray  # fp64; 0 is greedy

    def take(self, places: np.ndarray) -> Noise:
        return Noise(self.seed[places], self.temperature[places])


@dataclass(frozen=True, slots=True, eq=False)
class ExtendBatch:
    """ExtendItems as columns [b]; rows are flat, in the order of the sessions."""

    page_ids: np.ndarray  # int32 [b, pages], in order of position; past a session's capacity they mean nothing
    page_size: int
    capacity: np.ndarray  # int64: tokens that a session's pages hold
    base_len: np.ndarray  # int64
    num_rows: np.ndarray  # int64, at least 1
    tokens: np.ndarray  # int32 [rows]
    features: tuple[Tensor, ...]  # [rows, H] in parts, on the host
    shapes: np.ndarray  # int64 [4, b]: num_steps, eagle_topk, num_draft_tokens, min_path_permille; 0: no tree
    noise: Noise

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
        return cls(
            page_ids=page_ids,
            page_size=items[0].table.page_size,
            capacity=np.array([item.table.capacity for item in items]),
            base_len=np.array([item.base_len for item in items]),
            num_rows=np.array([len(item.tokens) for item in items]),
            tokens=np.concatenate([item.tokens for item in items]),
            features=tuple(item.features for item in items),
            shapes=np.array(shapes).T,
            noise=Noise(
                np.array([0 if p is None else p.seed for p in params], np.uint64),
                np.array([0.0 if p is None else p.temperature for p in params]),
            ),
        )

    def __len__(self) -> int:
        return len(self.base_len)

    def take(self, places: np.ndarray) -> ExtendBatch:
        """Some of the sessions, at least one. places: int64, ascending."""
        stops = self.num_rows.cumsum()
        starts = stops - self.num_rows
        return ExtendBatch(
            page_ids=self.page_ids[places],
            page_size=self.page_size,
            capacity=self.capacity[places],
            base_len=self.base_len[places],
            num_rows=self.num_rows[places],
            tokens=np.concatenate([self.tokens[starts[place] : stops[place]] for place in places]),
            features=rows_of(self.features, starts[places].tolist(), stops[places].tolist()),
            shapes=self.shapes[:, places],
            noise=self.noise.take(places),
        )

    def items(self) -> list[ExtendItem]:
        """The sessions one by one, with features that may be computed with."""
        stops = self.num_rows.cumsum().tolist()
        features = joined(self.features)
        if features.data_ptr() % features.itemsize:  # as they lay in a message
            features = features.clone()
        items, start = [], 0
        for i, stop in enumerate(stops):
            num_pages = int(self.capacity[i]) // self.page_size
            num_steps, topk, num_nodes, permille = self.shapes[:, i].tolist()
            params = ProposeParams(
                num_steps,
                topk,
                num_nodes,
                seed=int(self.noise.seed[i]),
                temperature=float(self.noise.temperature[i]),
                min_path_permille=permille,
            )
            items.append(
                ExtendItem(
                    table=HeldPages(self.page_ids[i, :num_pages], self.page_size),
                    base_len=int(self.base_len[i]),
                    tokens=self.tokens[start:stop],
                    features=features[start:stop],
                    propose=params if num_steps else None,
                )
            )
            start = stop
        return items


def joined(parts: Sequence[Tensor]) -> Tensor:
    """All rows in one tensor; a single part as it is."""
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts))


def rows_of(parts: Sequence[Tensor], starts: Sequence[int], stops: Sequence[int]) -> tuple[Tensor, ...]:
    """Rows [start, stop) of each pair, of all parts together, as views where there is one part. The pairs ascend."""
    whole = joined(parts)
    runs: list[list[int]] = []
    for start, stop in zip(starts, stops, strict=True):
        if runs and runs[-1][1] == start:
            runs[-1][1] = stop
        else:
            runs.append([start, stop])
    return tuple(whole[start:stop] for start, stop in runs)
