"""Rounds in two halves, over a device that computes on its own: the loop is told so of the CPU, and when steps end."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from paceline.tree import DraftTree
from paceline.types import SamplingParams, TreeShape
from target_service.draft_session import ArrivedTree
from target_service.engine_loop import IDLE_WAIT_S
from target_service.events import Cancelled, LossReason, StreamClosed, TreesArrived
from target_service.flights import Flights
from target_service.halves import Halves
from target_service.step_runner import PendingStep
from target_service.tree_nodes import nodes_of
from tests.support.driven_drafts import DrivenDraft
from tests.support.tiny_target import STREAM, DrivenLoop, always, off, random_prompt

TREE = TreeShape(4, 3, 10)
LONG = SamplingParams(max_tokens=40, ignore_eos=True)


@dataclass(slots=True)
class Device:
    """Steps are over at the fourth look at them; with rng, at random."""

    rng: np.random.Generator | None = None
    in_flight: list[int] = field(default_factory=list)  # steps under way after each launch
    flights: Flights | None = None  # of the loop that launched last
    _looks: list[PendingStep] = field(default_factory=list)

    def is_over(self, step: PendingStep) -> bool:
        self._looks.append(step)
        return self._looks.count(step) > 3 if self.rng is None else bool(self.rng.random() < 0.4)

    def launched(self, flights: Flights) -> None:
        self.flights = flights
        self.in_flight.append(flights.count)


@pytest.fixture
def device(monkeypatch) -> Device:
    device = Device()
    monkeypatch.setattr(PendingStep, "is_over", lambda step: device.is_over(step))
    return device


@pytest.fixture
def loop(make_loop, device, monkeypatch) -> DrivenLoop:
    loop = make_loop()
    loop.parts.runner.is_asynchronous = True
    monkeypatch.setattr(Halves, "is_split", property(lambda halves: halves is loop.parts.halves))
    launch = Flights.launch

    def watched(flights, due, **options):
        launch(flights, due, **options)
        if not due.is_ahead:  # of prompts, before any tree
            device.launched(flights)

    monkeypatch.setattr(Flights, "launch", watched)
    return loop


def finish(loop: DrivenLoop, draft) -> None:
    for _ in range(5000):
        loop.turn()
        draft.serve()
        if not loop.parts.requests.sequences:
            loop.settle()
            return
    raise AssertionError("requests still run")


def start(loop: DrivenLoop, device: Device, draft) -> list:
    """Four requests whose steps are launched one behind another; one is under way."""
    outputs = [loop.submit(50 + i, random_prompt(3 + i, seed=i), params=LONG, decision=always(TREE)) for i in range(4)]
    for _ in range(200):
        loop.turn()
        draft.serve()
        if device.in_flight.count(2) == 3:
            assert device.flights is not None and device.flights.count == 1
            return outputs
    raise AssertionError("no step was launched behind another")


def test_the_step_of_one_half_is_launched_behind_that_of_the_other(loop, device, head_draft):
    for i in range(4):
        loop.submit(50 + i, random_prompt(3 + i, seed=i), params=LONG, decision=always(TREE))
    finish(loop, head_draft)
    assert device.in_flight.count(2) > len(device.in_flight) / 2
    assert loop.metric("paceline_target_overlapped_steps_total") > device.in_flight.count(2)
    loop.check_all_pages_free()


@pytest.mark.parametrize("seed", range(4))
def test_halves_change_no_token_and_no_draft(make_loop, loop, device, head_proposer, seed):
    """A draft that sees other rows proposes other trees, so equal counts tell that it saw the same."""
    prompts = [random_prompt(n, seed=n) for n in (3, 16, 30, 5, 9)]
    at_once = make_loop()
    draft = DrivenDraft(at_once, head_proposer)
    draft.connect()
    wanted = [at_once.submit(50 + i, p, params=LONG, decision=always(TREE)) for i, p in enumerate(prompts)]
    draft.run()

    device.rng = np.random.default_rng(seed)
    draft = DrivenDraft(loop, head_proposer)
    draft.connect()
    outputs = [loop.submit(50 + i, p, params=LONG, decision=always(TREE)) for i, p in enumerate(prompts)]
    plain = loop.submit(60, prompts[0], params=LONG, decision=off())
    finish(loop, draft)
    assert [output.tokens for output in outputs] == [output.tokens for output in wanted]
    assert plain.tokens == outputs[0].tokens
    assert 2 in device.in_flight
    for output, other in zip(outputs, wanted, strict=True):
        assert output.finish.stats.accepted_drafts == other.finish.stats.accepted_drafts
    loop.check_all_pages_free()


def test_a_cancel_waits_for_the_steps_under_way_and_no_longer(loop, device, head_draft):
    outputs = start(loop, device, head_draft)
    loop.put(Cancelled(STREAM, [50, 51]))
    late = loop.submit(70, random_prompt(6), params=LONG)
    loop.turn()
    assert outputs[0].finish is None, "a step has the request"
    for _ in range(3):
        loop.turn()
    assert outputs[0].finish is not None and outputs[1].finish is not None
    finish(loop, head_draft)
    assert [len(outputs[i].tokens) for i in (2, 3)] == [40, 40]
    assert len(late.tokens) == 40
    loop.check_all_pages_free()


def test_a_stream_that_closes_takes_its_requests_along(loop, device, head_draft):
    start(loop, device, head_draft)
    loop.put(StreamClosed(STREAM))
    for _ in range(6):
        loop.turn()
    loop.check_all_pages_free()


def test_a_draft_that_is_lost_under_way_costs_no_token(make_loop, loop, device, head_draft):
    wanted = [make_loop().generate(random_prompt(3 + i, seed=i), LONG) for i in range(4)]
    outputs = start(loop, device, head_draft)
    head_draft.lose(LossReason.UNREACHABLE)
    while loop.turn() < IDLE_WAIT_S:
        pass
    assert [output.tokens for output in outputs] == wanted
    loop.check_all_pages_free()


def test_a_tree_that_comes_while_its_request_runs_without_is_late(loop, head_draft):
    head_draft.silent = True
    loop.submit(50, random_prompt(4), params=LONG, decision=always(TREE))
    for _ in range(3):
        loop.turn()
        head_draft.serve()
    (seq,) = loop.parts.requests.sequences.values()
    root = int(seq.tokens[seq.committed_len])
    tree = ArrivedTree(seq.draft.round, seq.committed_len, nodes_of(DraftTree.chain([root, 3, 4])))
    seq.is_running = True
    loop.parts.answers.on_trees(TreesArrived(head_draft.at, [seq.draft.session], [tree]), loop.clock.now_s)
    assert seq.draft.tree is None
    loop.parts.answers.count_trees()
    assert loop.metric("paceline_target_trees_total", verdict="late") == 1
