"""AcceptanceModel: how many tokens a round gives, by the shape of its tree and by the request's own record."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from router.acceptance_prior import prior_log_odds
from router.cost_tables import Floats
from router.shape_menu import ShapeMenu

Ints = NDArray[np.int64]

PRIOR_STD = 0.6  # of requests' skills around their mean, in log-odds

_PRIOR_ROUNDS = 24.0  # that a shape's prior counts as
_SHAPE_MEMORY = 2000.0  # rounds of one shape
_KEEP_ROUND = 0.98  # of a request's record, a round
_LATE_PRIOR = 50.0  # rounds in time, before any was seen
_MAX_SHIFT = 3.0


@dataclass(frozen=True, slots=True)
class RoundsSeen:
    """Rounds that asked for a tree; columns [m]."""

    slot: Ints  # the request's place in Skills
    shape: Ints  # index in the menu
    accepted: Ints  # drafts
    late: NDArray[np.bool_]


class Skills:
    """Of each request, in log-odds: how much likelier than the average its drafts are accepted, at every level.

    A Gaussian belief (mean, precision) a slot; slots grow as they are asked for. What is not renewed fades towards the
    average: so a request that was switched off for a bad stretch is tried again.
    """

    def __init__(self) -> None:
        self.mean: Floats = np.zeros(64)
        self.precision: Floats = np.full(64, PRIOR_STD**-2)
        self._free: list[int] = list(range(63, -1, -1))

    def open(self) -> int:
        """A slot with the average's belief."""
        if not self._free:
            size = len(self.mean)
            self.mean = np.concatenate([self.mean, np.zeros(size)])
            self.precision = np.concatenate([self.precision, np.full(size, PRIOR_STD**-2)])
            self._free = list(range(2 * size - 1, size - 1, -1))
        return self._free.pop()

    def close(self, slot: int) -> None:
        self.mean[slot] = 0.0
        self.precision[slot] = PRIOR_STD**-2
        self._free.append(slot)

    def fade(self, slots: Ints, rounds: Floats | float) -> None:
        """What was learnt loses the weight of so many rounds."""
        keep = _KEEP_ROUND**rounds
        before = self.precision[slots]
        after = keep * before + (1.0 - keep) * PRIOR_STD**-2
        self.mean[slots] *= keep * before / after
        self.precision[slots] = after

    def learn(self, slots: Ints, gradient: Floats, information: Floats) -> None:
        """One row a round; several of one slot add up."""
        rounds = np.bincount(slots, minlength=len(self.mean))
        touched = np.nonzero(rounds)[0]
        self.fade(touched, rounds[touched].astype(float))
        self.precision += np.bincount(slots, information, len(self.mean))
        self.mean += np.bincount(slots, gradient, len(self.mean)) / self.precision
        np.clip(self.mean, -_MAX_SHIFT, _MAX_SHIFT, out=self.mean)


class AcceptanceModel:
    """Accepted lengths of all shapes of a menu, for an average request and for one of any skill.

    P(accept depth d + 1 | accepted d) of shape s and a request of skill x is sigmoid(odds[s, d] + x): one number a
    request, learnt from whatever shape it ran, speaks for all shapes. Of each shape, the odds are those counted,
    shrunk to the prior of its form; the prior as a whole is shifted by what all shapes showed. So a shape that never
    ran is judged by those that did. All of it fades, for texts change.
    """

    def __init__(self, menu: ShapeMenu) -> None:
        self.menu = menu
        self._prior = np.array([prior_log_odds(shape, menu.max_depth) for shape in menu.shapes])
        self._tried = np.zeros_like(self._prior)
        self._passed = np.zeros_like(self._prior)
        self._shift = 0.0
        self._shift_precision = 4.0
        self._late, self._asked = 0.0, _LATE_PRIOR
        self._odds = self._prior.copy()

    @property
    def late_share(self) -> float:
        """Share of the rounds whose tree came too late."""
        return self._late / self._asked

    def lengths(self, skill: Floats) -> Floats:
        """[len(skill), shapes]: expected accepted length of a round, the extra token included, late rounds as well."""
        odds = self._odds[None] + skill[:, None, None]
        drafts = np.cumprod(_chance(odds), axis=2).sum(axis=2)
        lengths: Floats = 1.0 + (1.0 - self.late_share) * drafts
        return lengths

    def observe(self, seen: RoundsSeen, skills: Skills) -> None:
        """Learns from rounds, in any order."""
        self._count_late(seen.late)
        in_time = ~seen.late
        slot, shape, accepted = seen.slot[in_time], seen.shape[in_time], seen.accepted[in_time]
        if not len(slot):
            return
        depths = np.arange(self.menu.max_depth)
        tried = depths < np.minimum(accepted + 1, self.menu.depth[shape])[:, None]
        passed = depths < accepted[:, None]
        chance = np.where(tried, _chance(self._odds[shape] + skills.mean[slot][:, None]), 0.0)
        gradient = (passed - chance).sum(axis=1)
        information = (chance * (1.0 - chance)).sum(axis=1)
        skills.learn(slot, gradient, information)
        self._count(shape, accepted)

    def _count_late(self, late: NDArray[np.bool_]) -> None:
        self._late += float(late.sum())
        self._asked += float(len(late))
        if self._asked > _SHAPE_MEMORY:
            fade = _SHAPE_MEMORY / self._asked
            self._late, self._asked = self._late * fade, self._asked * fade

    def _count(self, shape: Ints, accepted: Ints) -> None:
        size, width = len(self.menu.shapes), self.menu.max_depth + 1
        rounds = np.bincount(shape * width + accepted, minlength=size * width).reshape(size, width)
        at_least = rounds[:, ::-1].cumsum(axis=1)[:, ::-1]  # entry d: rounds that accepted d drafts or more
        passed = at_least[:, 1:]
        tried = np.where(np.isfinite(self._prior), at_least[:, :-1], 0)
        self._learn_shift(tried, passed)
        self._tried += tried
        self._passed += passed
        fade = np.minimum(1.0, _SHAPE_MEMORY / np.maximum(self._tried[:, :1], 1.0))
        self._tried *= fade
        self._passed *= fade
        prior = _chance(self._prior + self._shift)
        share = (self._passed + _PRIOR_ROUNDS * prior) / (self._tried + _PRIOR_ROUNDS)
        with np.errstate(divide="ignore"):
            self._odds = np.log(share / (1.0 - share))

    def _learn_shift(self, tried: Ints, passed: Ints) -> None:
        """One step of Newton's method on the likelihood of what was seen, with all that came before as the prior."""
        chance = _chance(self._prior + self._shift)
        information = float((tried * chance * (1.0 - chance)).sum())
        self._shift_precision = min(self._shift_precision + information, _SHAPE_MEMORY)
        shift = self._shift + float((passed - tried * chance).sum()) / self._shift_precision
        self._shift = min(max(shift, -_MAX_SHIFT), _MAX_SHIFT)


def _chance(odds: Floats) -> Floats:
    chance: Floats = 1.0 / (1.0 + np.exp(-odds))
    return chance
