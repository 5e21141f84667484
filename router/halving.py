"""Halving: whether a target splits its rounds in halves, and what that says of the costs of the way not taken."""

from __future__ import annotations

_SMOOTHING = 0.05  # of steps with trees
_LEAST_STEPS = 20  # before the share says anything
_SPLIT, _WHOLE = 0.8, 0.2  # shares of steps that leave requests out, past which the target has settled on a way
_SURE = 1.02  # gain by the other way that the target would have found
_LEARNING = 0.5  # of what the target contradicts, each time
_LEAST, _MOST = 0.8, 1.6


class Halving:
    """A target tries both ways at each load and keeps the faster (docs/decisions.md): where costs say that it keeps the
    slower, they are wrong of the one that does not run, and nothing else would ever correct them. Pure."""

    def __init__(self) -> None:
        self.factor = (
            1.0  # of what a round in halves takes, over one at once, by the target's choices; by costs it is 1
        )
        self._share = 0.5
        self._num_steps = 0

    @property
    def on_halves(self) -> float:
        """Factor on what a round in halves is expected to take."""
        return max(1.0, self.factor)

    @property
    def on_whole(self) -> float:
        """Factor on what a round at once is expected to take."""
        return max(1.0, 1.0 / self.factor)

    def observe(self, *, is_split: bool) -> None:
        """A step with trees, of requests that all have some, or wait for those that have."""
        self._share += _SMOOTHING * (is_split - self._share)
        self._num_steps += 1

    def forget(self) -> None:
        """Others run than did so far."""
        self._share, self._num_steps = 0.5, 0

    def heed(self, gain: float) -> None:
        """gain: how many times as long as one in halves, this factor left out, a round at once is expected to take."""
        if self._num_steps < _LEAST_STEPS:
            return
        if self._share < _WHOLE and gain > _SURE * self.factor:
            self.factor += _LEARNING * (min(gain, _MOST) - self.factor)
        elif self._share > _SPLIT and self.factor > _SURE * gain:
            self.factor += _LEARNING * (max(gain, _LEAST) - self.factor)
