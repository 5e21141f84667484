"""The adaptive policy on the wire: calibrated by its peers, changed by what they report."""

from __future__ import annotations

import asyncio

import pytest_asyncio

from paceline.v1 import common_pb2, router_pb2, target_pb2
from tests.router.conftest import soon

CHAIN = common_pb2.TreeShape(num_steps=3, eagle_topk=1, num_draft_tokens=4)
TREE = common_pb2.TreeShape(num_steps=5, eagle_topk=4, num_draft_tokens=16)
STEP_TIMES = [common_pb2.StepTime(rows=rows, ms=ms) for rows, ms in ((1, 4.8), (64, 5.5), (256, 8.8), (512, 12.6))]
PROPOSE_TIMES = [
    common_pb2.ProposeTime(shape=shape, sessions=sessions, ms=ms)
    for shape, sessions, ms in ((CHAIN, 1, 0.8), (CHAIN, 64, 1.2), (TREE, 1, 1.2), (TREE, 64, 2.2))
]


class Wire:
    """A router with one target and one draft, both of which say what they measured."""

    def __init__(self, rig, stream, draft) -> None:
        self.rig = rig
        self.stream = stream
        self.draft = draft

    def shape(self, decision: target_pb2.SpeculationDecision, running: int) -> common_pb2.TreeShape | None:
        for rung in decision.ladder:
            if rung.max_running_requests == 0 or running <= rung.max_running_requests:
                return rung.shape if rung.HasField("shape") else None
        return None

    def step(self, number: int, accepted: int, *, shape=TREE, running: int = 1, **load) -> None:
        """One step with a round of one request."""
        rounds = target_pb2.SpeculativeRounds(
            shapes=[shape], request=[number], shape=[0], num_nodes=[shape.num_draft_tokens], accept_length=[accepted]
        )
        report = dict(running_requests=running, verified_requests=1, drafted_requests=1, rows=16, step_ms=5.0) | load
        self.stream.send(rounds=rounds, load=target_pb2.LoadReport(**report))

    async def steps_until(self, queue: asyncio.Queue, number: int, accepted: int, **load):
        """Steps, one after the other, until something is in the queue."""
        for _ in range(1000):
            self.step(number, accepted, **load)
            await asyncio.sleep(0.01)
            if not queue.empty():
                return queue.get_nowait()
        raise AssertionError("nothing came")


@pytest_asyncio.fixture
async def wire(make_target, make_draft, make_rig) -> Wire:
    target, draft = await make_target(step_times=STEP_TIMES), await make_draft(propose_times=PROPOSE_TIMES)
    rig = await make_rig([target], [draft], speculative_policy="adaptive")
    stream = await target.next_stream()
    await draft.watched.wait()
    await rig.info_when(lambda info: info.targets[0].ready and info.drafts[0].ready)
    return Wire(rig, stream, draft)


async def test_a_submission_carries_a_ladder_from_a_large_tree_to_none(wire: Wire) -> None:
    call = wire.rig.generate()
    decision = (await wire.stream.next_submission()).decision
    assert (decision.draft, decision.reason) == (wire.draft.address, "policy:adaptive")
    assert wire.shape(decision, 1) == TREE
    assert wire.shape(decision, 500) is None
    bounds = [rung.max_running_requests for rung in decision.ladder]
    assert bounds == sorted(bounds)
    call.cancel()


async def test_a_request_that_accepts_nothing_gets_a_smaller_tree(wire: Wire) -> None:
    call = wire.rig.generate()
    submission = await wire.stream.next_submission()
    number, before = submission.request, submission.decision
    update = (await wire.steps_until(wire.stream.updates, number, 0, tree_wait_ms=2.2))[number]
    after = wire.shape(update, 1)
    assert after is None or after.num_draft_tokens <= wire.shape(before, 1).num_draft_tokens
    assert update != before
    call.cancel()


async def test_a_request_that_begins_where_no_tree_pays_gets_a_draft_once_one_does(wire: Wire) -> None:
    first = wire.rig.generate()
    number = (await wire.stream.next_submission()).request
    wire.stream.send(load=target_pb2.LoadReport(running_requests=500, verified_requests=500, rows=500, step_ms=12.0))
    wire.stream.tokens(number, 0, [11])
    wire.stream.finish(number)
    assert [message async for message in first], "all that the target said was heard"
    call = wire.rig.generate()
    submission = await wire.stream.next_submission()
    assert (submission.decision.draft, submission.decision.reason) == ("", "policy:adaptive")
    idle = dict(drafted_requests=0, rows=1, step_ms=4.8)
    update = (await wire.steps_until(wire.stream.updates, submission.request, 0, **idle))[submission.request]
    assert update.draft == wire.draft.address
    assert wire.shape(update, 1) == TREE
    call.cancel()


async def test_overrides_are_left_alone(wire: Wire) -> None:
    shape = common_pb2.TreeShape(num_steps=2, eagle_topk=1, num_draft_tokens=3)
    calls, decisions = [], []
    for override in (router_pb2.SpeculationOverride(disable=True), router_pb2.SpeculationOverride(shape=shape)):
        calls.append(wire.rig.generate(speculation=override))
        decisions.append((await wire.stream.next_submission()).decision)
    assert [(d.reason, [rung.shape for rung in d.ladder]) for d in decisions] == [("request", []), ("request", [shape])]
    for call in calls:
        call.cancel()


async def test_rounds_are_joined_where_that_gives_more(wire: Wire) -> None:
    call = wire.rig.generate()
    number = (await wire.stream.next_submission()).request
    policy = await wire.steps_until(wire.stream.policies, number, 2, prefill_tokens=200, rows=216, step_ms=8.0)
    assert policy.HasField("join_rounds") and policy.join_rounds
    call.cancel()


async def test_peers_that_measured_nothing_get_the_tree_of_the_flags(make_target, make_draft, make_rig) -> None:
    target, draft = await make_target(), await make_draft()
    rig = await make_rig([target], [draft], speculative_policy="adaptive")
    stream = await target.next_stream()
    await draft.watched.wait()
    await rig.info_when(lambda info: info.targets[0].ready and info.drafts[0].ready)
    call = rig.generate()
    decision = (await stream.next_submission()).decision
    assert [(rung.max_running_requests, rung.shape.num_draft_tokens) for rung in decision.ladder] == [(0, 5)]
    call.cancel()


async def test_a_draft_that_comes_late_calibrates_the_requests_that_run(make_target, make_draft, make_rig) -> None:
    target, draft = await make_target(step_times=STEP_TIMES), await make_draft(propose_times=PROPOSE_TIMES)
    await draft.die()
    rig = await make_rig([target], [draft], speculative_policy="adaptive")
    stream = await target.next_stream()
    call = rig.generate()
    submission = await stream.next_submission()
    assert submission.decision.reason == "no-draft"
    await draft.start(draft.port)
    update = (await soon(stream.updates.get()))[submission.request]
    assert update.draft == draft.address
    assert update.ladder[0].shape == TREE
    call.cancel()


async def test_rounds_that_make_no_sense_end_the_stream(wire: Wire) -> None:
    call = wire.rig.generate()
    number = (await wire.stream.next_submission()).request
    bad = target_pb2.SpeculativeRounds(shapes=[TREE], request=[number], shape=[3], num_nodes=[2], accept_length=[1])
    wire.stream.send(rounds=bad)
    await wire.rig.info_when(lambda info: "speculative rounds" in info.targets[0].message)
    call.cancel()
