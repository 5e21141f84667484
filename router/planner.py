"""TargetPlanner: what the requests of one target are told, held still as long as changing it gains little."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from paceline.types import Rung
from router.acceptance import PRIOR_STD, AcceptanceModel, Ints, Skills
from router.cost_model import CostModel
from router.cost_tables import Floats
from router.goodput import Choice, Crowd, Goodput, Prompts
from router.shape_menu import OFF

Ladder = tuple[Rung, ...]

BATCHES = np.array([1.0, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512])
SKILLS = np.linspace(-1.5, 1.5, 7)  # requests are told apart by the nearest of these

_BAND = 0.25  # a batch that swings by this share around where it was planned keeps its rung
_REVISE_EVERY = 0.5  # of a window: where nothing changes, the plan is looked at again
_STICKY = 0.65  # of a step between skills: a request moves to another only past this


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """window_s: a request's setting changes at most once in it. margin: gain that a change must promise, a share."""

    window_s: float = 0.5
    margin: float = 0.03
    probe_loss: float = 0.01  # share of the goodput that may go into asking what drafts would be accepted now


@dataclass(frozen=True, slots=True)
class Situation:
    """What a plan is made for."""

    decoding: int  # requests past their prompt, of all routers
    context_tokens: float  # of one of them
    num_drafts: int
    prompts: Prompts


@dataclass(slots=True)
class _Member:
    slot: int
    level: int
    ladder: Ladder = ()
    changed_s: float = -np.inf


class TargetPlanner:
    """Pure: the clock comes in. Keys are the caller's names for its requests.

    ``plan`` may be called as often as one likes; what it returns are the ladders that changed. A ladder holds a
    shape for every batch size, so that a burst, or its end, is followed by the target at once. Around the batch
    size that it was made for it has a band in which nothing changes.
    """

    def __init__(self, model: AcceptanceModel, costs: CostModel, settings: PlannerSettings) -> None:
        self.model = model
        self.skills = Skills()
        self.joined = False  # all requests and prompts step together with the trees
        self._goodput = Goodput(model.menu, costs)
        self._settings = settings
        self._members: dict[Hashable, _Member] = {}
        self._left_slots: list[int] = []
        self._rows = np.full((len(BATCHES), len(SKILLS)), OFF)
        self._anchor = 1.0
        self._ladders: list[Ladder] = [()] * len(SKILLS)
        self._is_planned = False
        self._changed_s = self._revised_s = -np.inf
        self._probe: Hashable | None = None
        self._probe_until_s = -np.inf
        self._probe_after_s = -np.inf

    def slot(self, key: Hashable) -> int | None:
        """The request's place in ``skills``; None for one that is not here."""
        member = self._members.get(key)
        return None if member is None else member.slot

    def add(self, key: Hashable, now_s: float) -> Ladder:
        """The ladder of a new request."""
        slot = self.skills.open()
        level = _nearest(0.0)
        self._members[key] = _Member(slot, level, self._ladders[level], now_s)
        return self._ladders[level]

    def remove(self, key: Hashable) -> None:
        """Again is fine. Its place in ``skills`` is kept until ``free_slots``."""
        member = self._members.pop(key, None)
        if member is not None:
            self._left_slots.append(member.slot)
        if key == self._probe:
            self._probe = None

    def free_slots(self) -> None:
        """Rounds of the requests that were removed have been learnt from."""
        for slot in self._left_slots:
            self.skills.close(slot)
        self._left_slots.clear()

    def plan(self, situation: Situation, now_s: float) -> dict[Hashable, Ladder]:
        """The ladders that are other ones from now on."""
        crowd = self._crowd(situation)
        batch = float(max(situation.decoding, 1))
        window_s = self._settings.window_s
        is_settled = now_s - self._changed_s >= window_s and now_s - self._revised_s >= _REVISE_EVERY * window_s
        if is_settled or not self._is_planned:
            self._revised_s = now_s
            self._revise(crowd, batch, situation.prompts, now_s)
        self._choose_probe(crowd, batch, situation.prompts, now_s)
        return self._assign(now_s)

    def _crowd(self, situation: Situation) -> Crowd:
        """Skills of this router's requests stand for those of all; a few average ones keep an empty crowd sane."""
        share = np.exp(-0.5 * (SKILLS / PRIOR_STD) ** 2)
        share /= share.sum()
        for member in self._members.values():
            share[member.level] += 1.0
        lengths = self.model.lengths(SKILLS)
        return Crowd(share / share.sum(), lengths, situation.context_tokens, max(situation.num_drafts, 1))

    def _revise(self, crowd: Crowd, batch: float, prompts: Prompts, now_s: float) -> None:
        new = self._goodput.best(crowd, BATCHES, prompts)
        changed = self._take_rows(crowd, new, prompts)
        here = self._row_in_force(batch)
        ideal = _row_at(batch)
        is_same = (self._rows[here] == self._rows[ideal]).all()
        if not self._is_planned or (
            not self._is_steady(batch)
            if is_same
            else self._gains(crowd, batch, prompts, self._rows[ideal], self._rows[here])
        ):
            self._anchor, changed = batch, True
        self.joined = self._goodput.of(crowd, batch, prompts, self._rows[self._row_in_force(batch)]).joined
        if changed:
            self._is_planned = True
            self._changed_s = now_s
            self._ladders = [self._ladder(level) for level in range(len(SKILLS))]

    def _take_rows(self, crowd: Crowd, new: Choice, prompts: Prompts) -> bool:
        """Takes over the rows of the new choice that promise more than the margin; whether there was one."""
        held = self._goodput.of_rows(crowd, BATCHES, prompts, self._rows)
        better = (new.shapes != self._rows).any(axis=1) & (new.goodput > held * (1.0 + self._settings.margin))
        self._rows[better] = new.shapes[better]
        return bool(better.any())

    def _gains(self, crowd: Crowd, batch: float, prompts: Prompts, new: Ints, held: Ints) -> bool:
        goodput = self._goodput
        better = goodput.of(crowd, batch, prompts, new).goodput
        return better > (1.0 + self._settings.margin) * goodput.of(crowd, batch, prompts, held).goodput

    def _is_steady(self, batch: float) -> bool:
        """Whether a batch that swings by the band keeps its shapes."""
        low, high = (self._row_in_force(factor * batch) for factor in (1.0 - _BAND, 1.0 + _BAND))
        return bool((self._rows[low : high + 1] == self._rows[low]).all())

    def _bounds(self) -> Floats:
        """[rows]: the largest batch that each row serves, with the band around the anchor."""
        bounds = np.append(np.floor(np.sqrt(BATCHES[:-1] * BATCHES[1:])), np.inf)
        row = _row_at(self._anchor)
        low = np.floor((1.0 - _BAND) * self._anchor)
        high = np.ceil((1.0 + _BAND) * self._anchor)
        bounds[:row] = np.minimum(bounds[:row], max(low - 1.0, 0.0))
        bounds[row:] = np.maximum(bounds[row:], high)
        return bounds

    def _row_in_force(self, batch: float) -> int:
        return int(np.searchsorted(self._bounds(), batch))

    def _ladder(self, level: int) -> Ladder:
        rungs: list[Rung] = []
        for bound, index in zip(self._bounds().tolist(), self._rows[:, level].tolist(), strict=True):
            shape = self.model.menu.shape(index)
            most = 0 if bound == np.inf else int(bound)
            if bound < 1.0:
                continue
            if rungs and rungs[-1].shape == shape:
                rungs[-1] = Rung(most, shape)
            elif not rungs or rungs[-1].max_running_requests < most or most == 0:
                rungs.append(Rung(most, shape))
        return tuple(rungs[:-1]) if rungs[-1].shape is None else tuple(rungs)

    def _choose_probe(self, crowd: Crowd, batch: float, prompts: Prompts, now_s: float) -> None:
        """One request now and then speculates where none does, as far as the loss allows."""
        if self._probe is not None and now_s >= self._probe_until_s:
            self._probe = None
        shapes = self._rows[self._row_in_force(batch)]
        if self._probe is not None or now_s < self._probe_after_s or not self._members or (shapes != OFF).any():
            return
        count, since_s = len(self._members), now_s - self._settings.window_s
        self._probe = next((key for key, member in self._members.items() if member.changed_s <= since_s), None)
        if self._probe is None:
            return
        small = np.full(len(SKILLS), OFF)
        small[0] = self._probe_shape()
        alone = Crowd(
            np.append(1.0 / count, np.full(len(SKILLS) - 1, (1.0 - 1.0 / count) / (len(SKILLS) - 1))),
            crowd.lengths,
            crowd.context_tokens,
            crowd.num_drafts,
        )
        plain = self._goodput.of(crowd, batch, prompts, np.full(len(SKILLS), OFF)).goodput
        loss = max(0.0, 1.0 - self._goodput.of(alone, batch, prompts, small).goodput / plain)
        window_s = self._settings.window_s
        self._probe_until_s = now_s + window_s
        self._probe_after_s = now_s + window_s * max(4.0, loss / self._settings.probe_loss)

    def _probe_shape(self) -> int:
        """The largest tree of the plan's smallest batch that has one, or the menu's smallest."""
        for row in self._rows:
            drafted = row[row != OFF]
            if len(drafted):
                return int(drafted[len(drafted) // 2])
        return int(self.model.menu.of_growth[0][-1])

    def _assign(self, now_s: float) -> dict[Hashable, Ladder]:
        changes: dict[Hashable, Ladder] = {}
        means = self.skills.mean
        step = SKILLS[1] - SKILLS[0]
        for key, member in self._members.items():
            if now_s - member.changed_s < self._settings.window_s:
                continue
            skill = float(means[member.slot])
            if abs(skill - SKILLS[member.level]) > _STICKY * step:
                member.level = _nearest(skill)
            ladder = self._ladders[member.level]
            if key == self._probe:
                ladder = (Rung(0, self.model.menu.shape(self._probe_shape())),)
            if ladder != member.ladder:
                member.ladder, member.changed_s = ladder, now_s
                changes[key] = ladder
        return changes


def _nearest(skill: float) -> int:
    return int(np.abs(SKILLS - skill).argmin())


def _row_at(batch: float) -> int:
    """The row whose batch size is nearest, on a logarithmic scale."""
    return int(np.abs(np.log(BATCHES / batch)).argmin())
