"""The ragged batches that rows and beams of a Drafter run in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from engine.extend_batch import ExtendBatch, joined
from engine.pages import slots_at
from engine.ragged import indptr
from kernels.ops import AttentionBatch
from kernels.round_tables import SessionRows


@dataclass(frozen=True, slots=True, eq=False)
class RowBatch:
    """One extend forward: consecutive rows of some sessions of an ExtendBatch, a piece of each."""

    tokens: np.ndarray  # int32 [rows]
    features: Tensor  # [rows, H]
    positions: np.ndarray  # int64 [rows]
    slots: np.ndarray  # int64 [rows]
    last_rows: np.ndarray  # int64 [pieces]: the last row of each
    places: np.ndarray  # int64 [pieces]: the session's in the ExtendBatch
    attention: AttentionBatch


def split_rows(batch: ExtendBatch, max_rows: int) -> Iterator[RowBatch]:
    """The rows of all sessions, in order, at most max_rows a forward."""
    rows, num_rows = batch.rows, len(batch.rows.tokens)
    stops = rows.num_rows.cumsum()
    starts = stops - rows.num_rows
    features = joined(batch.features)
    for first in range(0, num_rows, max_rows):
        last = min(first + max_rows, num_rows)
        began, ended = starts.clip(first, last), stops.clip(first, last)
        places = (ended > began).nonzero()[0]
        base_len = (rows.base_len + began - starts)[places]
        part = slice(first, last)
        pieces = _Pieces(places, base_len, (ended - began)[places])
        yield _row_batch(rows._replace(tokens=rows.tokens[part]), pieces, features[part])


class Pages(NamedTuple):
    """The pages of many sequences, one after the other."""

    indptr: np.ndarray  # int32 [b + 1]
    ids: np.ndarray  # int32 [sum of pages]
    page_size: int


def first_pages(page_ids: np.ndarray, num_tokens: np.ndarray, page_size: int) -> Pages:
    """Those of so many tokens of each sequence. page_ids: int32 [b, pages]; num_tokens: int64 [b]."""
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


class _Pieces(NamedTuple):
    """Columns of a RowBatch's pieces."""

    places: np.ndarray
    base_len: np.ndarray
    counts: np.ndarray


def _row_batch(rows: SessionRows, pieces: _Pieces, features: Tensor) -> RowBatch:
    """One ragged causal forward. rows: with the tokens of these pieces alone."""
    places, base_len, counts = pieces
    tokens, seats = rows.tokens, rows.seats[places]
    pages = first_pages(rows.page_ids[seats], base_len + counts, rows.page_size)
    q_indptr = indptr(counts)
    starts, stops = q_indptr[:-1], q_indptr[1:]
    positions = np.arange(len(tokens)) + (base_len - starts).repeat(counts)
    return RowBatch(
        tokens=tokens,
        features=features,
        positions=positions,
        slots=slots_at(rows.page_ids, seats.repeat(counts), positions, rows.page_size),
        last_rows=stops - np.int64(1),
        places=places,
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
