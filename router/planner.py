"""TargetPlanner: what the requests of one target are told, held still as long as changing it gains little."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from paceline.step_table import Floats
from paceline.types import Rung
from router.acceptance import PRIOR_STD, AcceptanceModel, Skills
from router.cost_model import CostModel
from router.crowd import Crowd, Prompts
from router.plan_rows import SKILLS, PlannerSettings, PlanRows, row_at
from router.rungs import Bounds, Ladder
from router.shape_menu import OFF

_REVISE_EVERY = 0.5  # of a window
_STICKY = 0.65  # of a step between skills: a request moves to another only past this
_HOPE_EVERY = 20.0  # windows between two trials of what was hardly seen
_PROBE_EVERY = 4.0  # windows between two probes, at least
_IDLE_PROBE = 3.0  # times as far apart are probes that pay only where drafts have become more than much better
_BELIEF_STD = 0.35  # of what is known of a request's skill after some ten rounds
_JOIN_MARGIN = 0.05  # gain that stepping apart must promise while all step together
_MUCH_BETTER = 0.5  # of a skill
_FADE_ROUNDS_PER_S = 4.0  # of the record of a request that decodes plainly: half is gone after 17 s


@dataclass(frozen=True, slots=True)
class Situation:
    """What a plan is made for."""

    decoding: int  # requests past their prompt, of all routers
    context_tokens: float  # of one of them
    num_drafts: int
    prompts: Prompts
    attendance: float = 1.0  # share of the rounds that are to have a tree and have one


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
        self.num_wanted = 0  # requests that are to have a tree by the last plan, told so or not
        self._plan = PlanRows(model.menu, costs, settings)
        self._settings = settings
        self._members: dict[Hashable, _Member] = {}
        self._left_slots: list[int] = []
        self._bounds = Bounds(1.0)
        self._drift = 0.0  # of gains past the margin, of the last looks, by moving the bounds
        self._ladders: list[Ladder] = [()] * len(SKILLS)
        self._is_planned = False
        self._revised_s = self._faded_s = -np.inf
        self._hope_after_s = -np.inf
        self._probe: Hashable | None = None
        self._probe_until_s = -np.inf
        self._probe_after_s = -np.inf
        self._known_s = -np.inf  # when all requests speculated last, or one was probed

    @property
    def num_requests(self) -> int:
        """That are planned for."""
        return len(self._members)

    def slot(self, key: Hashable) -> int | None:
        """The request's place in ``skills``; None for one that is not here."""
        member = self._members.get(key)
        return None if member is None else member.slot

    def ladders(self) -> Iterator[tuple[Hashable, Ladder]]:
        """Of every request, what it was told."""
        return ((key, member.ladder) for key, member in self._members.items())

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
        self.model.hear(self.skills, np.array(self._left_slots, np.int64))
        for slot in self._left_slots:
            self.skills.close(slot)
        self._left_slots.clear()

    def plan(self, situation: Situation, now_s: float) -> dict[Hashable, Ladder]:
        """The ladders that are other ones from now on."""
        batch = float(max(situation.decoding, 1))
        plain = self._plain_members(batch)
        self._fade(plain.values(), now_s)
        crowd = self._crowd(self._lengths(SKILLS), situation)
        if now_s - self._revised_s >= _REVISE_EVERY * self._settings.window_s:
            self._revised_s = now_s
            self._revise(crowd, batch, situation.prompts, now_s)
        if self._probe is not None and now_s >= self._probe_until_s:
            self._probe = None
        if self._members and not plain:
            self._known_s = now_s
        if self._probe is None and now_s >= self._probe_after_s:
            self._choose_probe(situation, plain, now_s)
        return self._assign(now_s)

    def _plain_members(self, batch: float) -> dict[Hashable, _Member]:
        """Those whom the plan gives no tree."""
        is_plain = (self._plan.shapes[self._bounds.row(batch)] == OFF).tolist()
        return {key: member for key, member in self._members.items() if is_plain[member.level]}

    def _fade(self, plain: Iterable[_Member], now_s: float) -> None:
        """What requests that decode plainly have shown counts less and less: so they are tried again."""
        slots = np.array([member.slot for member in plain], np.int64)
        if np.isfinite(self._faded_s) and len(slots):
            self.skills.fade(slots, _FADE_ROUNDS_PER_S * (now_s - self._faded_s))
        self._faded_s = now_s

    def _lengths(self, skills: Floats) -> Floats:
        """Expected where a skill is known give or take _BELIEF_STD. A request of few tokens a round is there for the
        longer: so it is the rounds that are averaged, not the tokens."""
        low, high = self.model.lengths(skills - _BELIEF_STD), self.model.lengths(skills + _BELIEF_STD)
        lengths: Floats = 2.0 / (1.0 / low + 1.0 / high)
        return lengths

    def _crowd(self, lengths: Floats, situation: Situation) -> Crowd:
        """Skills of this router's requests stand for those of all; a few average ones keep an empty crowd sane."""
        share = np.exp(-0.5 * (SKILLS / PRIOR_STD) ** 2)
        share /= share.sum()
        for member in self._members.values():
            share[member.level] += 1.0
        lengths = 1.0 + situation.attendance * (lengths - 1.0)
        return Crowd(share / share.sum(), lengths, situation.context_tokens, max(situation.num_drafts, 1))

    def _revise(self, crowd: Crowd, batch: float, prompts: Prompts, now_s: float) -> None:
        plan = self._plan
        if self._is_planned:
            changed = plan.revise(crowd, prompts, batch)
            if not changed and now_s >= self._hope_after_s and self._members:
                levels = {member.level for member in self._members.values()}
                changed = plan.hope(crowd, self._bounds.row(batch), prompts, levels)
                self._hope_after_s = now_s + _HOPE_EVERY * self._settings.window_s
        else:
            plan.begin(crowd, prompts)
            changed = self._is_planned = True
        if self._is_to_move(crowd, batch, prompts):
            self._bounds, self._drift, changed = Bounds(batch), 0.0, True
        row = self._bounds.row(batch)
        rate = plan.rate(crowd, batch, prompts, row)
        stays = self.joined and rate.together < rate.apart < (1.0 + _JOIN_MARGIN) * rate.together
        self.joined = rate.joined or stays
        is_wanted = (plan.shapes[row] != OFF).tolist()
        self.num_wanted = sum(is_wanted[member.level] for member in self._members.values())
        if changed:
            shapes, menu = plan.shapes, self.model.menu
            self._ladders = [self._bounds.ladder(shapes[:, level], menu) for level in range(len(SKILLS))]

    def _is_to_move(self, crowd: Crowd, batch: float, prompts: Prompts) -> bool:
        """Whether the bounds are to be those around another batch size: for shapes that give more there, by gains that
        add up as those of a row do (PlanRows.revise). The first row's shapes are those of a lone request."""
        plan, settings = self._plan, self._settings
        here, ideal = self._bounds.row(batch), row_at(batch)
        if here == 0 < ideal:
            return True
        if (plan.shapes[here] == plan.shapes[ideal]).all():
            self._drift = 0.0
            return not self._bounds.keeps(batch, plan.shapes)
        held = plan.rate(crowd, batch, prompts, here).goodput
        gain = float(np.log(plan.rate(crowd, batch, prompts, ideal).goodput / held))
        # Two looks at least: between a request's end and the first token of the next one the batch is one less.
        self._drift = max(0.0, self._drift + min(gain - settings.margin, settings.patience))
        return self._drift > settings.patience

    def _choose_probe(self, situation: Situation, plain: Mapping[Hashable, _Member], now_s: float) -> None:
        """The one of whom least is known speculates for a window, as often as the loss allows."""
        window_s, batch = self._settings.window_s, float(max(situation.decoding, 1))
        ready = [key for key, member in plain.items() if member.changed_s <= now_s - window_s]
        self._probe = min(ready, key=lambda key: self.skills.precision.item(plain[key].slot), default=None)
        if self._probe is None:
            return
        lengths = self._lengths(SKILLS)
        share = np.full(len(SKILLS), (1.0 - 1.0 / len(self._members)) / (len(SKILLS) - 1))
        share[0] = 1.0 / len(self._members)
        one = Crowd(share, lengths, situation.context_tokens, max(situation.num_drafts, 1))
        probed = self._plan.rate_one(one, batch, situation.prompts, self._probe_shape())
        loss = max(0.0, 1.0 - probed / self._plan.rate_plain(one, batch, situation.prompts))
        better = self._crowd(self._lengths(SKILLS + _MUCH_BETTER), situation)
        rarely = 1.0 if self._plan.may_pay(better, batch, situation.prompts) else _IDLE_PROBE
        self._probe_after_s = self._known_s + rarely * window_s * max(_PROBE_EVERY, loss / self._settings.probe_loss)
        if now_s < self._probe_after_s:
            self._probe = None
            return
        self._probe_until_s = self._known_s = now_s + window_s

    def _probe_shape(self) -> int:
        """The largest tree of the plan's smallest batch that has one, or the menu's smallest."""
        for row in self._plan.shapes:
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
