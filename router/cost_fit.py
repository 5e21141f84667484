"""LeakyFit: a linear model that starts from what is known, follows what is seen, and grows unsure of the rest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class LeakyFit:
    """Bayesian linear regression with exponential forgetting: what is not seen any more stays, less and less sure.

    Where all that is seen lies at one load, the residual goes to the features whose prior is widest, and the
    others stay as they were calibrated. So a fit from one batch size does not spoil the slope by rows.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], *, least: Sequence[float], forget: float) -> None:
        """mean and std: of each weight, the prior. least: that each can be. forget: share of what was seen that one
        observation drops."""
        self._least = np.array(least)
        self._prior_precision = np.diag(np.array(std) ** -2.0)
        self._precision = self._prior_precision.copy()
        self._weights = np.array(mean)
        self._forget = forget

    @property
    def weights(self) -> list[float]:
        """The posterior mean of each."""
        weights: list[float] = self._weights.tolist()
        return weights

    def expect(self, features: Sequence[float]) -> float:
        return float(self._weights @ np.array(features))

    def variance(self, features: Sequence[float]) -> float:
        """Of what is expected."""
        return float(features @ np.linalg.solve(self._precision, np.array(features)))

    def observe(self, features: Sequence[float], value: float, *, noise: float) -> None:
        """One observation: value = features . weights, give or take noise (a standard deviation)."""
        scaled = np.array(features) / noise
        surprise = value / noise - float(self._weights @ scaled)
        kept = (1.0 - self._forget) * self._precision + self._forget * self._prior_precision
        self._precision = kept + np.outer(scaled, scaled)
        weights = self._weights + np.linalg.solve(self._precision, scaled) * surprise
        self._weights = np.maximum(weights, self._least)
