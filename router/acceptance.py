"""AcceptanceModel: how many tokens a round gives, by the shape of its tree and by the request's own record."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.step_table import Floats
from router.acceptance_prior import chance_of, drafts_of, prior_log_odds
from router.shape_menu import ShapeMenu

Ints = NDArray[np.int64]

# Of requests' skills around their mean, in log-odds: 0.52 over 35 prompts of Spec-Bench at (2,3,5), 0.41 at (5,4,16).
# Within a request the rounds are as good as independent: the correlation of two is the same 1 or 16 rounds apart.
PRIOR_STD = 0.5

_SHIFT_STD = 0.35  # of a head's mean around the default pair's
_OFFSET_STD = 0.1  # of one shape's level around its form's prior
_SHAPE_MEMORY = 500.0  # information that an offset keeps at most
_SHIFT_MEMORY = 200.0
_KEEP_ROUND = 0.99  # of a request's record, a round
_HEARD = 5.0  # information, of about 12 rounds, after which a request speaks for the average
_FORGOTTEN = 1.0  # information below which one that has spoken may speak again
_MOST_HEARD = 3 * PRIOR_STD  # that one request may differ from the average by in the average's eyes
_LATE_PRIOR = 50.0  # rounds in time, before any was seen
_LATE_MEMORY = 400.0
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
        self.has_spoken: NDArray[np.bool_] = np.zeros(64, np.bool_)
        self._free: list[int] = list(range(63, -1, -1))

    def open(self) -> int:
        """A slot with the average's belief."""
        if not self._free:
            size = len(self.mean)
            self.mean = np.concatenate([self.mean, np.zeros(size)])
            self.precision = np.concatenate([self.precision, np.full(size, PRIOR_STD**-2)])
            self.has_spoken = np.concatenate([self.has_spoken, np.zeros(size, np.bool_)])
            self._free = list(range(2 * size - 1, size - 1, -1))
        return self._free.pop()

    def close(self, slot: int) -> None:
        self.mean[slot] = 0.0
        self.precision[slot] = PRIOR_STD**-2
        self.has_spoken[slot] = False
        self._free.append(slot)

    def rebase(self, shift: float) -> None:
        """The average moved by so much; what each request has shown itself stays."""
        self.mean -= shift * (1.0 - PRIOR_STD**-2 / self.precision)

    def fade(self, slots: Ints, rounds: Floats | float) -> None:
        """What was learnt loses the weight of so many rounds."""
        keep = _KEEP_ROUND**rounds
        before = self.precision[slots]
        after = keep * before + (1.0 - keep) * PRIOR_STD**-2
        self.mean[slots] *= keep * before / after
        self.precision[slots] = after
        self.has_spoken[slots] &= after - PRIOR_STD**-2 > _FORGOTTEN

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

    P(accept depth d + 1 | accepted d) of shape s and a request of skill x is sigmoid(prior + shift + offset[s, d] + x).
    One number a request, learnt from whatever shape it ran, speaks for all shapes; what its rounds have in common is
    its own skill first. The shift, which is the same for all, hears each request once, as one draw from the population:
    a request that goes badly, and is all that was ever seen, does not make every other look bad. What skills leave of
    the difference between a shape's levels goes to the offsets, whose mean is nothing: else a shape that runs alone
    would explain by its own what holds for all, and the others be left with whatever the shift drifts to. All of it
    fades, for texts change.
    """

    def __init__(self, menu: ShapeMenu) -> None:
        self.menu = menu
        self._prior = np.array([prior_log_odds(shape, menu.max_depth) for shape in menu.shapes])
        self._offset = np.zeros_like(self._prior)
        self._offset_precision = np.full_like(self._prior, _OFFSET_STD**-2)
        self._shift = 0.0
        self._shift_precision = _SHIFT_STD**-2
        self._late, self._asked = 0.0, _LATE_PRIOR

    @property
    def late_share(self) -> float:
        """Share of the rounds whose tree came too late."""
        return self._late / self._asked

    def lengths(self, skill: Floats) -> Floats:
        """[len(skill), shapes]: expected accepted length of a round, the extra token included, late rounds as well."""
        odds = self._odds()[None] + skill[:, None, None]
        lengths: Floats = 1.0 + (1.0 - self.late_share) * drafts_of(odds)
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
        odds = self._odds()[shape]
        chance = np.where(tried, chance_of(odds + skills.mean[slot][:, None]), 0.0)
        skills.learn(slot, (passed - chance).sum(axis=1), (chance * (1.0 - chance)).sum(axis=1))
        self.hear(skills, np.unique(slot), least=_HEARD)
        known = skills.has_spoken[slot]
        chance = np.where(tried, chance_of(self._odds()[shape] + skills.mean[slot][:, None]), 0.0)[known]
        self._learn_offsets(shape[known], passed[known] - chance, chance * (1.0 - chance))

    def hear(self, skills: Skills, slots: Ints, *, least: float = 0.0) -> None:
        """Takes each request that shows at least so much information, and was not heard yet, into the average."""
        for slot in slots.tolist():
            shown = float(skills.precision[slot]) - PRIOR_STD**-2
            if skills.has_spoken[slot] or shown <= least:
                continue
            skills.has_spoken[slot] = True
            by_rounds = float(skills.mean[slot]) * (shown + PRIOR_STD**-2) / shown  # the average left out
            weight = 1.0 / (1.0 / shown + PRIOR_STD**2)
            self._shift_precision += weight
            before = self._shift
            shift = before + weight * min(max(by_rounds, -_MOST_HEARD), _MOST_HEARD) / self._shift_precision
            self._shift = min(max(shift, -_MAX_SHIFT), _MAX_SHIFT)
            self._shift_precision = min(self._shift_precision, _SHIFT_MEMORY)
            skills.rebase(self._shift - before)

    def _odds(self) -> Floats:
        odds: Floats = self._prior + self._shift + self._offset
        return odds

    def _count_late(self, late: NDArray[np.bool_]) -> None:
        self._late += float(late.sum())
        self._asked += float(len(late))
        if self._asked > _LATE_MEMORY:
            fade = _LATE_MEMORY / self._asked
            self._late, self._asked = self._late * fade, self._asked * fade

    def _learn_offsets(self, shape: Ints, gradient: Floats, information: Floats) -> None:
        """One row a round: [m, depths] each."""
        gained, shown = np.zeros_like(self._offset), np.zeros_like(self._offset)
        np.add.at(gained, shape, gradient)
        np.add.at(shown, shape, information)
        precision = self._offset_precision + shown
        self._offset += np.where(shown > 0, gained / precision, 0.0)
        self._offset_precision = np.minimum(precision, _SHAPE_MEMORY)
        known = self._offset_precision - _OFFSET_STD**-2
        total = known.sum(axis=1, keepdims=True)
        mean = (known * self._offset).sum(axis=1, keepdims=True) / np.maximum(total, 1e-9)
        self._offset -= np.where(known > 0, mean, 0.0)
