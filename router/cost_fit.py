"""LeakyFit: a linear model that starts from what is known, follows what is seen, and forgets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class LeakyFit:
    """Bayesian linear regression with exponential forgetting towards its prior.

    Where all that is seen lies at one load, the residual goes to the features whose prior is widest, and the
    others stay as they were calibrated. So a fit from one batch size does not spoil the slope by rows.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], *, least: Sequence[float], forget: float) -> None:
        """mean and std: of each weight, the prior. least: that each can be. forget: share of what was seen that one
        observation drops."""
        self._prior_precision = np.diag(np.array(std) ** -2.0)
        self._prior_moment = self._prior_precision @ np.array(mean)
        self._precision = self._prior_precision.copy()
        self._moment = self._prior_moment.copy()
        self._least = np.array(least)
        self._forget = forget
        self._weights: list[float] | None = list(mean)

    @property
    def weights(self) -> list[float]:
        """The posterior mean of each, or the least where that is below it."""
        if self._weights is None:
            self._weights = np.maximum(np.linalg.solve(self._precision, self._moment), self._least).tolist()
        return self._weights

    def expect(self, features: Sequence[float]) -> float:
        return sum(weight * feature for weight, feature in zip(self.weights, features, strict=True))

    def variance(self, features: Sequence[float]) -> float:
        """Of what is expected."""
        return float(features @ np.linalg.solve(self._precision, np.array(features)))

    def observe(self, features: Sequence[float], value: float, *, noise: float) -> None:
        """One observation: value = features . weights, give or take noise (a standard deviation)."""
        keep, forget = 1.0 - self._forget, self._forget
        scaled = np.array(features) / noise
        self._precision = keep * self._precision + forget * self._prior_precision + np.outer(scaled, scaled)
        self._moment = keep * self._moment + forget * self._prior_moment + scaled * (value / noise)
        self._weights = None
