"""LeakyFit: a linear model that starts from what is known, follows what is seen, and forgets."""

from __future__ import annotations

import numpy as np

from router.cost_tables import Floats


class LeakyFit:
    """Bayesian linear regression with exponential forgetting towards its prior.

    Where all that is seen lies at one load, the residual goes to the features whose prior is widest, and the
    others stay as they were calibrated. So a fit from one batch size does not spoil the slope by rows.
    """

    def __init__(self, mean: Floats, std: Floats, *, forget: float) -> None:
        """mean and std: [features], the prior. forget: share of what was seen that one observation drops."""
        self._prior_precision = np.diag(std**-2.0)
        self._prior_moment = self._prior_precision @ mean
        self._precision = self._prior_precision.copy()
        self._moment = self._prior_moment.copy()
        self._forget = forget
        self._weights: Floats | None = mean.copy()

    @property
    def weights(self) -> Floats:
        """[features], the posterior mean."""
        if self._weights is None:
            self._weights = np.linalg.solve(self._precision, self._moment).astype(np.float64)
        return self._weights

    def observe(self, features: Floats, value: float, *, noise: float) -> None:
        """One observation: value = features . weights, give or take noise (a standard deviation)."""
        keep, forget = 1.0 - self._forget, self._forget
        scaled = features / noise
        self._precision = keep * self._precision + forget * self._prior_precision + np.outer(scaled, scaled)
        self._moment = keep * self._moment + forget * self._prior_moment + scaled * (value / noise)
        self._weights = None
