"""Ragged arrays: many short ones, one after the other."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np


def indptr(counts: np.ndarray) -> np.ndarray:
    """int32 [n + 1]: 0 and the running sums, so that [indptr[i], indptr[i + 1]) are the places of the i-th."""
    if len(counts) == 1:
        return np.array((0, counts.item()), np.int32)
    sums = np.zeros(len(counts) + 1, np.int32)
    counts.cumsum(out=sums[1:])
    return sums


_MOST_KEPT = 64  # arrays


class Layout(NamedTuple):
    """What the lengths of n arrays alone decide. Shared by all batches of those lengths: never changed."""

    counts: np.ndarray  # int32 [n]
    indptr: np.ndarray  # int32 [n + 1]
    rows: np.ndarray  # int32 [rows]: 0, 1, ...
    local: list[int]  # [rows]: within its array
    last_rows: np.ndarray  # int64 [n]
    places: np.ndarray  # int64 [n]: 0, 1, ...
    none: np.ndarray  # bool [n]
    all: np.ndarray  # bool [n]
    no_masks: np.ndarray  # uint64 [rows]


def layout_of(counts: tuple[int, ...]) -> Layout:
    """Short ones are kept, which come again and again: a few rows' arrays take longer to make than to use."""
    return _kept(counts) if len(counts) <= _MOST_KEPT else _made(counts)


@lru_cache(maxsize=1024)
def _kept(counts: tuple[int, ...]) -> Layout:
    return _made(counts)


def _made(counts: tuple[int, ...]) -> Layout:
    lengths = np.array(counts, np.int32)
    sums = indptr(lengths)
    return Layout(
        counts=lengths,
        indptr=sums,
        rows=np.arange(sum(counts), dtype=np.int32),
        local=[place for count in counts for place in range(count)],
        last_rows=sums[1:] - np.int64(1),
        places=np.arange(len(counts)),
        none=np.zeros(len(counts), np.bool_),
        all=np.ones(len(counts), np.bool_),
        no_masks=np.zeros(sum(counts), np.uint64),
    )
