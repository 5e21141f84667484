"""DriftingFit: a linear model that starts from what is known, follows what is seen, and forgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paceline.step_table import Floats

LEAST_NOISE_MS = 0.1  # of a measured time
LEAST_FACTOR = 0.05  # of a table's time: nothing takes less
_HUBER = 3.0  # standard deviations
OUTLIER = 3.0  # times what was expected, at most: a pause of the machine teaches nothing


class Weight(NamedTuple):
    """What is known of one before anything was seen."""

    mean: float
    std: float
    least: float  # it is never below
    memory: float  # observations over which it drifts back to that, whatever they are of


class DriftingFit:
    """A Kalman filter whose weights each drift back to their prior, an Ornstein-Uhlenbeck process (Särkkä and Svensson,
    "Bayesian Filtering and Smoothing", chapters 4 and 7).

    All weights are one belief, with what ties them. So where what was seen can be explained in two ways, each takes
    the share that its prior allows, and what is seen later of one corrects the other; weights that were corrected apart
    would drift apart instead, with nothing but their sum right.
    """

    def __init__(self, weights: Sequence[Weight]) -> None:
        means, stds, least, memories = (np.array(column) for column in zip(*weights, strict=True))
        self._prior_mean: Floats = means
        self._least: Floats = least
        self._keep: Floats = np.exp(-1.0 / memories)
        self._renewed: Floats = (1.0 - self._keep**2) * stds**2
        self._both_kept = np.outer(self._keep, self._keep)
        self._mean: Floats = means.copy()
        self._covariance: Floats = np.diag(stds**2)

    @property
    def weights(self) -> Floats:
        """What is believed. Not to be changed."""
        return self._mean

    def std(self, index: int) -> float:
        """Of one weight, as it is believed."""
        return float(np.sqrt(self._covariance[index, index]))

    def expect(self, features: Floats) -> float:
        return float(features @ self._mean)

    def observe(self, features: Floats, value: float, *, noise: float) -> None:
        """One observation: value = features . weights, give or take noise (a standard deviation).

        A surprise past _HUBER standard deviations counts as that: one step into which other work fell moves little, and
        a lasting change is followed all the same.
        """
        mean = self._prior_mean + self._keep * (self._mean - self._prior_mean)
        covariance = self._both_kept * self._covariance
        covariance.flat[:: len(mean) + 1] += self._renewed
        shared = covariance @ features
        variance = float(features @ shared) + noise**2
        gain, most = shared / variance, _HUBER * variance**0.5
        mean += gain * min(max(value - float(features @ mean), -most), most)
        covariance -= np.outer(gain, shared)
        for index in np.nonzero(mean < self._least)[0].tolist():
            missing = self._least[index] - mean[index]
            if missing > 0.0:  # the ones before may have moved it
                mean += missing / covariance[index, index] * covariance[index]
        self._mean, self._covariance = np.maximum(mean, self._least), covariance
