"""TargetPolicy: the adaptive policy of one target: what it reports goes in, the ladders that changed come out."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import NamedTuple

import numpy as np

from paceline.types import TreeShape, shape_at
from router.acceptance import AcceptanceModel, RoundsSeen
from router.attendance import Attendance
from router.cost_model import CostModel
from router.crowd import Prompts
from router.following import Following
from router.hindsight import Hindsight
from router.plan_rows import PlannerSettings
from router.planner import Situation, TargetPlanner
from router.rungs import Ladder
from router.step_costs import Batch
from router.step_report import StepReport

PLAN_INTERVAL_S = 0.1  # between two looks at the plan; one takes some milliseconds, with hundreds of requests

_RATE_S = 3.0  # over which prompts are counted
_OBSERVE_INTERVAL_S = 0.01  # between two steps whose times are learnt from
_WARM_S = 1.0  # after its last tree a draft may have to catch up first, which says little about the next ones
_LEAST_JOINED = 0.25  # share of the requests that still have trees, for which all wait until these are off as well
_SETTLED = 6  # steps with trees of one growth, after which no ask for another one is under way
_LEAST_AWAY = 0.25  # share of the requests that a step leaves out for their trees; fewer came or went


class RoundReport(NamedTuple):
    """One round of one request that asked for a tree."""

    key: Hashable
    shape: TreeShape
    accepted: int
    late: bool


class TargetPolicy:
    """Cheap a step, dear a plan: rounds and times gather, and are worked in when a plan is made."""

    def __init__(self, model: AcceptanceModel, costs: CostModel, settings: PlannerSettings, *, now_s: float) -> None:
        self.model = model
        self.costs = costs
        self._planner = TargetPlanner(model, costs, settings)
        self._following = Following(shares_host=costs.shares_host)
        self._attendance = Attendance(now_s)
        self._hindsight = Hindsight(model, costs)
        self._rounds: list[tuple[int, int, int, bool]] = []  # slot, index of the shape, accepted, late
        self._growths: set[TreeShape] = set()  # of the rounds since the last step
        self._growth: TreeShape | None = None  # of the trees that came last; None where they were of several
        self._num_alike = 0  # steps with trees before the last one, of the same growth
        self._num_late = 0  # rounds since the last step
        self._joins = False
        self._had_prompts = False  # in the last step
        self._is_warm = False
        self._asked_s = -math.inf  # the last step with trees, late ones too
        self._decoding = self._prefilling = 0
        self._context_tokens = 0.0  # of one request
        self._prompt_steps = 0.0  # faded counts over _RATE_S
        self._prompt_tokens = 0.0
        self._heard_s = now_s
        self._observed_s = -math.inf
        self._planned_s = -math.inf
        self.num_drafts = 1
        self.plan(now_s)

    @property
    def joined(self) -> bool:
        """Whether all that the target runs should step together with the trees. Not while nothing is planned for."""
        return self._joins and self._planner.num_requests > 0

    @property
    def num_requests(self) -> int:
        """That are planned for."""
        return self._planner.num_requests

    def start(self, key: Hashable, now_s: float, *, num_running: int = 1) -> Ladder:
        """The ladder for a request that begins. num_running: requests of the target, this one included."""
        ladder = self._planner.add(key, now_s)
        self._following.start(key, now_s, asks=shape_at(ladder, num_running) is not None)
        return ladder

    def end(self, key: Hashable) -> None:
        """Again is fine."""
        self._planner.remove(key)
        self._following.end(key)

    def follows(self, key: Hashable) -> bool:
        """Whether a draft is to keep up with the request; without one its ladder is void."""
        return self._following.follows(key)

    def revise_following(self, now_s: float) -> list[Hashable]:
        """To be called after each plan. Returns the requests that ``follows`` answers otherwise from now on.

        Those that are still at their prompts count as well: of a burst's first ones, none is followed in vain.
        """
        batch = max(self._decoding + self._prefilling, 1)
        asks = [(key, shape_at(ladder, batch) is not None) for key, ladder in self._planner.ladders()]
        num_asking = sum(does for _, does in asks)
        self._attendance.plan(len(asks), num_asking)
        are_ending = num_asking >= max(2 * self._planner.num_wanted, _LEAST_JOINED * len(asks))
        self._joins = self._planner.joined or (self._joins and are_ending)
        return self._following.revise(asks, now_s)

    def take_step(self, report: StepReport, now_s: float) -> None:
        self._decoding, self._prefilling = report.decoding, report.prefilling
        self._count_prompts(report, now_s)
        if not report.rows:
            return
        self._hindsight.take_step(report)
        num_late, self._num_late = self._num_late, 0
        growths, self._growths = self._growths, set()
        if report.drafted or num_late:
            self._note_growth(growths)
        if report.requests:
            self._context_tokens = report.context_tokens / report.requests
        if now_s - self._observed_s >= _OBSERVE_INTERVAL_S:
            self._observed_s = now_s
            self._is_warm = now_s - self._asked_s < _WARM_S
            self._observe(report, num_late)
        if report.drafted + num_late:
            self._asked_s = now_s
            if self.joined:
                self._attendance.observe(report.requests, report.drafted + num_late, now_s)
        self._had_prompts = report.prefill_tokens > 0

    def _observe(self, report: StepReport, num_late: int) -> None:
        """Of the ways from asks to trees those alone are learnt from that were for trees of one growth, as those before
        were: after a change of growth some requests ask for the old one, and each waits for both.

        Where a draft shares the target's host, no step is learnt from beside which it had more to do than usual: the
        prompts of the last step, or trees that are late. While trees are asked, plain steps are seen at no other time,
        and would look slower than they are when no tree is.
        """
        is_beside_work = self._had_prompts and not report.prefill_tokens
        beside_ms = self._beside_ms(report)
        if beside_ms is not None and not (self.costs.shares_host and (is_beside_work or num_late)):
            batch = Batch(report.requests, report.context_tokens, report.drafted, beside_ms)
            self.costs.steps.observe(report.rows, batch, report.step_ms)
        num_asked = report.drafted + num_late
        taken_ms = max(report.turnaround_ms, self._waited_ms(report, num_asked))
        is_catching_up = not self._is_warm or (self.costs.shares_host and self._had_prompts)
        if taken_ms <= 0 or is_catching_up or self._growth is None or self._num_alike < _SETTLED:
            return
        growth = self._growth
        sessions = max(1, num_asked // self.num_drafts)
        beside = 1.0 - min(1.0, report.wait_ms / taken_ms)
        nodes = report.tree_nodes / report.drafted if report.drafted else float(growth.num_draft_tokens)
        self.costs.observe_way(growth, sessions, nodes, taken_ms, beside=beside, is_late=num_late > 0)

    def _note_growth(self, growths: set[TreeShape]) -> None:
        growth = growths.pop() if len(growths) == 1 else None
        self._num_alike = self._num_alike + 1 if growth == self._growth else 0
        self._growth = growth

    def _beside_ms(self, report: StepReport) -> float | None:
        """That a draft was at work for requests that the step left out; None where nobody said what for, or where some
        of them had their prompts' last tokens in it."""
        num_away = report.decoding - report.requests
        if not self._is_warm or num_away <= 0 or num_away < _LEAST_AWAY * report.decoding:
            return 0.0
        if self._growth is None or report.prefill_tokens:
            return None
        return float(self.costs.draft_ms(self._growth, np.array([num_away / self.num_drafts]))[0])

    def _waited_ms(self, report: StepReport, num_asked: int) -> float:
        """The wait, where it was as long as the trees took: nothing stepped meanwhile. 0 where that is not known."""
        is_pure = num_asked == report.requests and not report.prefill_tokens
        return report.wait_ms if is_pure or self.joined else 0.0

    def take_rounds(self, reports: Iterable[RoundReport]) -> None:
        """Those of requests that are not here, and of shapes that the menu lacks, are left out."""
        index, slot_of = self.model.menu.index, self._planner.slot
        for key, shape, accepted, late in reports:
            slot, number = slot_of(key), index.get(shape)
            if slot is not None and number is not None:
                self._rounds.append((slot, number, accepted, late))
                self._growths.add(self.model.menu.growth_of(number))
                self._num_late += late

    def is_due(self, now_s: float) -> bool:
        """Whether a plan is worth its time."""
        return self._planner.num_requests > 0 and now_s - self._planned_s >= PLAN_INTERVAL_S

    def plan(self, now_s: float) -> dict[Hashable, Ladder]:
        """Works in what was reported. Returns the ladders that are other ones from now on."""
        self._planned_s = now_s
        self._learn()
        self._hindsight.conclude(self._planner.num_requests, self.num_drafts, joined=self.joined)
        self.costs.look(now_s)
        situation = Situation(
            self._decoding, self._context_tokens, self.num_drafts, self._prompts(), self._attendance.share
        )
        return self._planner.plan(situation, now_s)

    def _learn(self) -> None:
        rounds, self._rounds = self._rounds, []
        if rounds:
            slots, shapes, accepted, late = (np.array(column) for column in zip(*rounds, strict=True))
            self.model.observe(RoundsSeen(slots, shapes, accepted, late), self._planner.skills)
            self._hindsight.take_rounds(shapes.tolist())
        self._planner.free_slots()

    def _count_prompts(self, report: StepReport, now_s: float) -> None:
        keep = math.exp(-max(0.0, now_s - self._heard_s) / _RATE_S)
        self._heard_s = now_s
        self._prompt_steps = self._prompt_steps * keep + (report.prefill_tokens > 0)
        self._prompt_tokens = self._prompt_tokens * keep + report.prefill_tokens

    def _prompts(self) -> Prompts:
        if self._prompt_steps < 1e-3:
            return Prompts()
        return Prompts(self._prompt_steps / _RATE_S, self._prompt_tokens / self._prompt_steps)
