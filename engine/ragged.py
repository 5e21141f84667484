"""Ragged arrays: many short ones, one after the other."""

from __future__ import annotations

import numpy as np


def indptr(counts: np.ndarray) -> np.ndarray:
    """int32 [n + 1]: 0 and the running sums, so that [indptr[i], indptr[i + 1]) are the places of the i-th."""
    if len(counts) == 1:
        return np.array((0, counts.item()), np.int32)
    sums = np.zeros(len(counts) + 1, np.int32)
    counts.cumsum(out=sums[1:])
    return sums
