"""Attendance: how many of the rounds that were to have a tree had one."""

from __future__ import annotations

import math

_FADE_S = 5.0
_DOUBT = 500.0  # rounds that all had theirs, before any was seen: a plan that has just changed says little
_LEAST = 0.5
_LEAST_WANTED = 0.25  # share of the requests; where fewer are to have trees, others' decide what is seen


class Attendance:
    """A request decodes plainly until a draft has its prompt's rows, and in its last round: that is a good part of the
    rounds of a short answer. Pure: the clock comes in."""

    def __init__(self, now_s: float) -> None:
        self._wanted = self._had = 0.0
        self._share = 0.0  # of the requests, that are to have trees
        self._seen_s = now_s

    @property
    def share(self) -> float:
        """Of the rounds that were to have a tree, those that had."""
        return max(_LEAST, min(1.0, (self._had + _DOUBT) / (self._wanted + _DOUBT)))

    def plan(self, num_requests: int, num_asking: int) -> None:
        """What holds from now on."""
        self._share = num_asking / num_requests if num_requests else 0.0

    def observe(self, requests: int, trees: int, now_s: float) -> None:
        """A step with trees in which all that were there took part; late ones count as there."""
        keep = math.exp(-max(0.0, now_s - self._seen_s) / _FADE_S)
        self._seen_s = now_s
        if self._share >= _LEAST_WANTED:
            self._wanted = self._wanted * keep + self._share * requests
            self._had = self._had * keep + min(float(trees), self._share * requests)
