"""Rehearsals go through a round's code and leave no trace in the rounds themselves; when there are some."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from prometheus_client import CollectorRegistry

from engine.graph_capture import Launch
from engine.plan import StepPlan
from engine.target_model import TargetModel
from engine.tp import TpGroup
from kernels.ops import WalkResult
from paceline.types import SamplingParams, TreeShape
from target_service.info_codec import ServiceInfo
from target_service.loading import LoadedRank
from target_service.order_codec import encode_orders
from target_service.rehearsal import Rehearsal
from target_service.service import LoadedTarget, TargetService, make_parts
from target_service.step_runner import PendingStep
from tests.support.driven_drafts import DrivenDraft, Prophet
from tests.support.eager_buffers import BufferedOps
from tests.support.extension import needs_extension
from tests.support.rehearsals import assert_ends_where_nothing_comes, assert_ends_with_its_connection, cable
from tests.support.tiny_draft import CONTEXT, VOCAB
from tests.support.tiny_target import PAGE_SIZE, DrivenLoop, TinyTarget, always, random_prompt

pytestmark = needs_extension

REHEARSAL_S = 0.0005
TREE = TreeShape(4, 3, 10)
LONG = SamplingParams(max_tokens=20, ignore_eos=True)


class Captured:
    """A rank with graphs, and how many of them were launched."""

    def __init__(self, tiny: TinyTarget) -> None:
        self.launched = 0
        ops = BufferedOps()
        model = TargetModel.load(
            tiny.model_path,
            head_path=tiny.head_path,
            dtype=torch.float32,
            ops=ops,
            device=torch.device("cpu"),
            tp=TpGroup(),
        )
        cache = model.make_cache(256, PAGE_SIZE)
        model.capture(cache, 16, capture=self._capture)
        self.rank = LoadedRank(model, cache, ops, TpGroup())

    def _capture(self, launch: Launch) -> Launch:
        def counted() -> None:
            self.launched += 1
            launch()

        launch()
        return counted


def rounds(captured: Captured, tiny: TinyTarget, rehearse: Callable[[], object]) -> tuple[list[bytes], int]:
    """The asks of a request whose every turn follows a rehearsal, and how many graphs were launched."""
    loop = DrivenLoop(tiny.config(max_rows_per_step=16), captured.rank)
    captured.launched = 0
    prompt = random_prompt(6)
    plain = loop.generate(prompt, LONG)
    draft = DrivenDraft(loop, Prophet([prompt + plain], np.random.default_rng(0), VOCAB))
    draft.connect()
    output = loop.submit(50, prompt, params=LONG, decision=always(TREE))
    while output.finish is None:
        rehearse()
        loop.turn()
        rehearse()
        draft.serve()
    loop.settle()
    assert output.tokens == plain
    assert output.finish.stats.accepted_drafts > 5
    loop.check_all_pages_free()
    asks = [encode_orders([part], 1) for orders in loop.orders for part in orders.values()]
    return [ask.SerializeToString() for ask in asks if ask is not None], captured.launched


async def test_a_rehearsal_launches_one_small_graph_and_changes_no_token_and_no_ask(tiny_target: TinyTarget) -> None:
    alone, rehearsed = Captured(tiny_target), Captured(tiny_target)
    rehearsal = Rehearsal(rehearsed.rank)
    num_rehearsals = 0

    def rehearse() -> None:
        nonlocal num_rehearsals
        before, cache = rehearsed.launched, rehearsed.rank.cache
        kept = [part[: cache.spare_slot].clone() for part in (*cache.k, *cache.v)]
        rehearsal.run()
        num_rehearsals += 1
        assert rehearsed.launched == before + 1
        for part, held in zip((*cache.k, *cache.v), kept, strict=True):
            assert torch.equal(part[: cache.spare_slot], held)

    asks, num_launched = rounds(rehearsed, tiny_target, rehearse)
    assert (asks, num_launched - num_rehearsals) == rounds(alone, tiny_target, lambda: None)
    rehearsal.close()


async def test_each_rehearsal_is_a_round_from_a_tree_to_the_next_ask(
    tiny_target: TinyTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = Captured(tiny_target).rank
    plans = []
    rehearse = rank.model.rehearse
    monkeypatch.setattr(rank.model, "rehearse", lambda plan, cache: (plans.append(plan), rehearse(plan, cache)))
    rehearsal = Rehearsal(rank)
    plans.clear()
    for _ in range(3):
        rehearsal.run()
    assert [plan.num_rows for plan in plans] == [8, 8, 8]
    assert all((plan.positions == plans[0].positions).all() for plan in plans), "it starts where it did"
    assert all(len(plan.move_src) for plan in plans), "what it accepts is moved"
    rehearsal.close()


async def test_a_connection_that_breaks_ends_the_rehearsals_and_nothing_else(
    tiny_target: TinyTarget, caplog: pytest.LogCaptureFixture
) -> None:
    captured = Captured(tiny_target)
    rehearsal = Rehearsal(captured.rank)
    assert_ends_with_its_connection(rehearsal, rehearsal._draft._frames, captured, caplog)


@pytest.mark.parametrize("from_ours", [True, False])
async def test_a_connection_by_which_nothing_comes_ends_the_rehearsals_and_delays_none(
    tiny_target: TinyTarget, from_ours: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    captured = Captured(tiny_target)
    with cable() as link:
        monkeypatch.setattr("target_service.rehearsal.loopback_pair", lambda: (link.ours, link.theirs))
        assert_ends_where_nothing_comes(lambda: Rehearsal(captured.rank), link, caplog, from_ours=from_ours)


class Timed:
    """A decode loop over a device whose steps take step_s of the loop's clock, and when it rehearsed within them."""

    def __init__(self, tiny: TinyTarget, rank: LoadedRank, monkeypatch: pytest.MonkeyPatch, *, step_s: float) -> None:
        self.step_s = step_s
        self.launch_s = 0.0  # of the host
        self.rehearsal_s = REHEARSAL_S
        self.chances_s: list[float] = []  # what the next ones take instead
        self.num_drafted = 0  # steps with a tree
        self.late_s: list[float] = []  # how late each step's end was seen; below 0: it was waited for
        self.rehearsed_s: list[float] = []  # since the launch
        self.loop = DrivenLoop(tiny.config(disable_overlap_schedule=True), rank, rehearse=self._rehearse)
        runner = self.loop.parts.runner
        runner.is_asynchronous = True
        self._launch = runner.launch
        self._launched_s = 0.0
        monkeypatch.setattr(runner, "launch", self._note_launch)
        monkeypatch.setattr(PendingStep, "is_over", lambda _: self._spent_s >= self.step_s)
        walk = PendingStep.walk

        def waited(pending: PendingStep) -> WalkResult:
            late_s = self._spent_s - self.step_s
            self.late_s.append(late_s)
            self.loop.clock.sleep(max(0.0, -late_s))
            return walk(pending)

        monkeypatch.setattr(PendingStep, "walk", waited)

    @property
    def _spent_s(self) -> float:
        return self.loop.clock.now_s - self._launched_s

    def speculate(self) -> float:
        """A request with trees, to its end; how late a step's end was seen, at most."""
        prompt = random_prompt(6)
        plain = self.loop.generate(prompt, LONG)
        draft = DrivenDraft(self.loop, Prophet([prompt + plain], np.random.default_rng(0), VOCAB))
        draft.connect()
        output = self.loop.submit(50, prompt, params=LONG, decision=always(TREE))
        while output.finish is None:
            self.loop.clock.sleep(min(self.loop.turn(), 0.01))
            draft.serve()
        assert output.tokens == plain
        return max(self.late_s)

    def _note_launch(self, plan: StepPlan, *args: object, **options: object) -> PendingStep:
        self.num_drafted += len(plan.trees.tokens) >= len(plan.trees.node_indptr)
        self._launched_s = self.loop.clock.now_s
        self.loop.clock.sleep(self.launch_s)
        return self._launch(plan, *args, **options)

    def _rehearse(self) -> None:
        self.rehearsed_s.append(self._spent_s)
        self.loop.clock.sleep(self.chances_s.pop() if self.chances_s else self.rehearsal_s)


@pytest.fixture
def timed(tiny_target: TinyTarget, tiny_rank: LoadedRank, monkeypatch: pytest.MonkeyPatch) -> Timed:
    """Of steps that take 20 ms; one request has speculated."""
    timed = Timed(tiny_target, tiny_rank, monkeypatch, step_s=0.02)
    timed.speculate()
    return timed


def test_steps_with_trees_have_one_rehearsal_shortly_before_their_end(timed: Timed) -> None:
    known = timed.rehearsed_s[-3:]  # by then it knows what steps and rehearsals take
    assert len(known) == 3
    assert all(0.01 < spent_s < timed.step_s - REHEARSAL_S for spent_s in known)


def test_a_step_that_is_over_sooner_than_expected_is_not_kept_waiting(timed: Timed) -> None:
    timed.step_s = 0.001
    timed.rehearsed_s.clear()
    assert timed.speculate() <= 0.001
    assert not timed.rehearsed_s


def test_a_step_that_is_looked_at_shortly_before_its_end_has_no_rehearsal(timed: Timed) -> None:
    timed.rehearsed_s.clear()
    timed.launch_s = timed.step_s - REHEARSAL_S / 2
    timed.speculate()
    assert not timed.rehearsed_s


def test_one_rehearsal_that_took_longer_than_a_step_is_not_the_last(timed: Timed) -> None:
    timed.rehearsal_s = 0.035
    while timed.rehearsed_s:
        timed.rehearsed_s.clear()
        timed.speculate()
    timed.rehearsal_s = REHEARSAL_S
    for _ in range(20):
        timed.speculate()
    assert timed.rehearsed_s


def test_one_rehearsal_that_took_long_by_chance_delays_its_own_step_and_keeps_one_other_from_its(
    timed: Timed,
) -> None:
    timed.rehearsed_s.clear()
    timed.late_s.clear()
    timed.num_drafted = 0
    timed.chances_s.append(0.2)
    timed.speculate()
    assert len([late_s for late_s in timed.late_s if late_s > 0.001]) == 1
    assert len(timed.rehearsed_s) == timed.num_drafted - 1 > 3


def test_steps_without_trees_have_no_rehearsal(
    tiny_target: TinyTarget, tiny_rank: LoadedRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = Timed(tiny_target, tiny_rank, monkeypatch, step_s=0.02)
    timed.loop.generate(random_prompt(6), LONG)
    assert not timed.rehearsed_s


async def test_a_service_whose_threads_wait_busily_has_rehearsals_and_lets_go_of_them(
    tiny_target: TinyTarget, tiny_rank: LoadedRank
) -> None:
    for busy_wait_ms in (0.0, 1.0):
        config = tiny_target.config(busy_wait_ms=busy_wait_ms)
        parts = make_parts(config, tiny_rank, context_length=CONTEXT, registry=CollectorRegistry())
        info = ServiceInfo(incarnation=1, vocab_size=VOCAB, context_length=CONTEXT, page_size=PAGE_SIZE)
        service = TargetService(LoadedTarget(config, info, parts, tiny_rank))
        rehearsal = service._rehearsal
        assert (rehearsal is not None) == (busy_wait_ms > 0)
        await service.start()
        await service.close()
    assert rehearsal is not None
    assert rehearsal._draft.fileno() == -1
