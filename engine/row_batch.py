"""The ragged batches that rows and beams run in."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from engine.extend_batch import ExtendBatch, joined
from engine.pages import pages_for, slots_at
from engine.pool import HeadCache
from engine.ragged import indptr, layout_of
from kernels.ops import AttentionBatch
from paceline.types import MAX_SCRATCH_NODES

_FEW_SESSIONS = 4
_FEW_ROWS = 8  # up to here lists are faster than arrays: the fewer kinds of calls, the less a CPU has to fetch


@dataclass(frozen=True, slots=True, eq=False)
class RowBatch:
    """One extend forward: consecutive rows of some sessions of an ExtendBatch, a piece of each."""

    tokens: np.ndarray  # int32 [rows]
    features: tuple[Tensor, ...]  # [rows, H] in parts
    positions: np.ndarray  # int64 [rows]
    slots: np.ndarray  # int64 [rows]
    last_rows: np.ndarray  # int64 [pieces]: the last row of each
    places: np.ndarray  # int64 [pieces]: the session's in the ExtendBatch
    is_end: np.ndarray  # bool [pieces]: whether the piece has its session's last row
    attention: AttentionBatch


def split_rows(batch: ExtendBatch, max_rows: int) -> Iterator[RowBatch]:
    """The rows of all sessions, in order, at most max_rows a forward."""
    num_rows, num_sessions = len(batch.tokens), len(batch)
    if num_rows <= min(max_rows, _FEW_ROWS):
        yield _few_rows(batch)
        return
    if num_rows <= max_rows:
        yield _row_batch(
            batch,
            _Pieces(np.arange(num_sessions), batch.base_len, batch.num_rows, np.ones(num_sessions, np.bool_)),
            tokens=batch.tokens,
            features=batch.features,
        )
        return
    stops = batch.num_rows.cumsum()
    starts = stops - batch.num_rows
    features = joined(batch.features)
    for first in range(0, num_rows, max_rows):
        last = min(first + max_rows, num_rows)
        began, ended = starts.clip(first, last), stops.clip(first, last)
        places = (ended > began).nonzero()[0]
        base_len = (batch.base_len + began - starts)[places]
        yield _row_batch(
            batch,
            _Pieces(places, base_len, (ended - began)[places], stops[places] == ended[places]),
            tokens=batch.tokens[first:last],
            features=(features[first:last],),
        )


class Pages(NamedTuple):
    """The pages of many sequences, one after the other."""

    indptr: np.ndarray  # int32 [b + 1]
    ids: np.ndarray  # int32 [sum of pages]
    page_size: int


def first_pages(page_ids: np.ndarray, num_tokens: np.ndarray, page_size: int) -> Pages:
    """Those of so many tokens of each sequence. page_ids: int32 [b, pages]; num_tokens: int64 [b]."""
    if len(num_tokens) <= _FEW_SESSIONS:
        return _first_pages_of_few(page_ids, num_tokens.tolist(), page_size)
    counts = (num_tokens + (page_size - 1)) // page_size
    width = max(counts.tolist())
    return Pages(indptr(counts), page_ids[:, :width][np.arange(width) < counts[:, None]], page_size)


def tree_attention(
    pages: Pages,
    *,
    prefix_len: np.ndarray,
    local_len: np.ndarray,
    counts: np.ndarray,
    ancestors: np.ndarray,
) -> AttentionBatch:
    """One level of beams. local_len: int64 [b], scratch nodes with this level's; counts: int64 [b], this level's alone;
    ancestors: uint64 [rows]."""
    return AttentionBatch(
        q_indptr=indptr(counts),
        prefix_len=prefix_len.astype(np.int32),
        local_len=local_len.astype(np.int32),
        page_indptr=pages.indptr,
        page_ids=pages.ids,
        is_causal=np.zeros(len(counts), np.bool_),
        ancestors=ancestors,
        page_size=pages.page_size,
    )


def spare_batch(cache: HeadCache, num_rows: int) -> AttentionBatch:
    """One request on the cache's spare page, with up to 64 rows of a tree: for captures."""
    num_pages = -(-MAX_SCRATCH_NODES // cache.page_size)
    return AttentionBatch(
        q_indptr=np.array([0, num_rows], np.int32),
        prefix_len=np.zeros(1, np.int32),
        local_len=np.array([num_rows], np.int32),
        page_indptr=np.array([0, num_pages], np.int32),
        page_ids=np.full(num_pages, cache.num_pages, np.int32),
        is_causal=np.zeros(1, np.bool_),
        ancestors=np.ones(num_rows, np.uint64),
        page_size=cache.page_size,
    )


def _few_rows(batch: ExtendBatch) -> RowBatch:
    """All rows in one forward, as ``_row_batch`` makes it."""
    page_size, base_len, counts = batch.page_size, batch.base_len.tolist(), batch.num_rows.tolist()
    positions: list[int] = []
    slots: list[int] = []
    for pages, base, count in zip(batch.page_ids, base_len, counts, strict=True):
        for position in range(base, base + count):
            page, offset = divmod(position, page_size)
            positions.append(position)
            slots.append(pages.item(page) * page_size + offset)
    pages = _first_pages_of_few(batch.page_ids, [b + c for b, c in zip(base_len, counts, strict=True)], page_size)
    layout = layout_of(tuple(counts))
    return RowBatch(
        tokens=batch.tokens,
        features=batch.features,
        positions=np.array(positions),
        slots=np.array(slots),
        last_rows=layout.last_rows,
        places=layout.places,
        is_end=layout.all,
        attention=AttentionBatch(
            q_indptr=layout.indptr,
            prefix_len=np.array(base_len, np.int32),
            local_len=layout.counts,
            page_indptr=pages.indptr,
            page_ids=pages.ids,
            is_causal=layout.all,
            ancestors=layout.no_masks,
            page_size=page_size,
        ),
    )


def _first_pages_of_few(page_ids: np.ndarray, num_tokens: list[int], page_size: int) -> Pages:
    """As ``first_pages``."""
    counts = [pages_for(tokens, page_size) for tokens in num_tokens]
    parts = [row[:count] for row, count in zip(page_ids, counts, strict=True)]
    ids = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return Pages(np.array([0, *itertools.accumulate(counts)], np.int32), ids, page_size)


class _Pieces(NamedTuple):
    """Columns of a RowBatch's pieces."""

    places: np.ndarray
    base_len: np.ndarray
    counts: np.ndarray
    is_end: np.ndarray


def _row_batch(batch: ExtendBatch, pieces: _Pieces, *, tokens: np.ndarray, features: tuple[Tensor, ...]) -> RowBatch:
    """One ragged causal forward."""
    places, base_len, counts, is_end = pieces
    is_whole = len(places) == len(batch)
    page_ids = batch.page_ids if is_whole else batch.page_ids[places]
    pages = first_pages(page_ids, base_len + counts, batch.page_size)
    q_indptr = indptr(counts)
    starts, stops = q_indptr[:-1], q_indptr[1:]
    positions = np.arange(len(tokens)) + (base_len - starts).repeat(counts)
    return RowBatch(
        tokens=tokens,
        features=features,
        positions=positions,
        slots=slots_at(batch.page_ids, places.repeat(counts), positions, batch.page_size),
        last_rows=stops - np.int64(1),
        places=places,
        is_end=is_end,
        attention=AttentionBatch(
            q_indptr=q_indptr,
            prefix_len=base_len.astype(np.int32),
            local_len=counts.astype(np.int32),
            page_indptr=pages.indptr,
            page_ids=pages.ids,
            is_causal=np.ones(len(places), np.bool_),
            ancestors=np.zeros(len(tokens), np.uint64),
            page_size=pages.page_size,
        ),
    )
