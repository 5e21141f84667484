"""Fits of measured times: by parts that are never negative, and by values that never fall."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 8
_NOISE = 0.05  # of a time, relative; what is further off counts less
_NOTHING = 1e-9

_Floats = NDArray[np.float64]


def fit_parts(
    features: Sequence[Sequence[float]], values: Sequence[float], *, prior: Sequence[tuple[float, float]]
) -> list[float]:
    """Weights, each 0 or more: values = features @ weights, by least relative squares that forgive outliers.

    values are above 0. prior: of each weight what it is taken for before, and give or take how much.
    """
    matrix, wanted = np.array(features, float), np.array(values, float)
    means, stds = np.array(prior, float).T
    spread = _NOISE * wanted
    weights = means
    for _ in range(_ROUNDS):
        scaled = matrix / spread[:, None]
        gram = scaled.T @ scaled + np.diag(stds**-2)
        weights = _least_squares(gram, scaled.T @ (wanted / spread) + means / stds**2)
        error = (matrix @ weights - wanted) / wanted
        spread = _NOISE * wanted * np.sqrt(1.0 + (error / _NOISE) ** 2)
    return [float(weight) for weight in weights]


def rising(values: Sequence[float], counts: Sequence[int]) -> list[float]:
    """The nearest values that never fall, by least squares where each counts that often."""
    blocks: list[tuple[float, float, int]] = []  # value, weight, entries
    for value, count in zip(values, counts, strict=True):
        block = (value, float(count), 1)
        while blocks and blocks[-1][0] > block[0]:
            before = blocks.pop()
            weight = before[1] + block[1]
            block = ((before[0] * before[1] + block[0] * block[1]) / weight, weight, before[2] + block[2])
        blocks.append(block)
    return [value for value, _, entries in blocks for _ in range(entries)]


def _least_squares(gram: _Floats, moments: _Floats) -> _Floats:
    """x of 0 or more for which x @ gram @ x / 2 - moments @ x is least, by Lawson and Hanson's active sets (Solving
    Least Squares Problems, 1974). gram is positive definite."""
    x = np.zeros(len(moments))
    is_free = np.zeros(len(moments), bool)
    while True:
        slope = np.where(is_free, -np.inf, moments - gram @ x)
        if is_free.all() or slope.max() <= _NOTHING * np.abs(moments).max():
            return x
        is_free[slope.argmax()] = True
        while True:
            trial = np.zeros_like(x)
            trial[is_free] = np.linalg.solve(gram[np.ix_(is_free, is_free)], moments[is_free])
            falls = is_free & (trial <= 0.0)
            if not falls.any():
                break
            x += (x[falls] / (x[falls] - trial[falls])).min() * (trial - x)
            is_free &= x > _NOTHING
            x[~is_free] = 0.0
        x = trial
