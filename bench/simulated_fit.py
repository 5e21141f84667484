"""A fit of measured times by parts that are never negative."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 8
_NOISE = 0.05  # of a time, relative; what is further off counts less

_Floats = NDArray[np.float64]


def fit_parts(
    features: Sequence[Sequence[float]], values: Sequence[float], *, prior: Sequence[tuple[float, float]]
) -> list[float]:
    """Weights, each 0 or more: values = features @ weights, by least relative squares that forgive outliers.

    values are above 0. prior: of each weight what it is taken for before, and give or take how much. The features are
    few: all subsets are tried.
    """
    matrix, wanted = np.array(features, float), np.array(values, float)
    means, stds = np.array(prior, float).T
    spread = _NOISE * wanted
    weights = means
    for _ in range(_ROUNDS):
        rows = np.concatenate([matrix / spread[:, None], np.diag(1.0 / stds)])
        weights = _least_squares(rows, np.concatenate([wanted / spread, means / stds]))
        error = (matrix @ weights - wanted) / wanted
        spread = _NOISE * wanted * np.sqrt(1.0 + (error / _NOISE) ** 2)
    return [float(weight) for weight in weights]


def _least_squares(matrix: _Floats, wanted: _Floats) -> _Floats:
    num_weights = matrix.shape[1]
    best, least = np.zeros(num_weights), float((wanted**2).sum())
    for size in range(1, num_weights + 1):
        for subset in map(list, itertools.combinations(range(num_weights), size)):
            part = np.linalg.lstsq(matrix[:, subset], wanted, rcond=None)[0]
            error = float(((matrix[:, subset] @ part - wanted) ** 2).sum())
            if (part >= 0.0).all() and error < least:
                best, least = np.zeros(num_weights), error
                best[subset] = part
    return best
