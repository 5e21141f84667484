"""What targets are told about speculation, and when they are told something else."""

from __future__ import annotations

from paceline.codec import encode_tree_shape
from paceline.defaults import DEFAULT_TREE
from paceline.v1 import common_pb2, router_pb2, target_pb2
from tests.router.conftest import soon

SHAPE = encode_tree_shape(DEFAULT_TREE)
OWN = common_pb2.TreeShape(num_steps=3, eagle_topk=1, num_draft_tokens=4)


async def up(make_target, make_rig, drafts, **flags):
    """A router whose target and drafts are all connected, and the target's stream."""
    target = await make_target()
    rig = await make_rig([target], drafts, **flags)
    stream = await target.next_stream()
    for draft in drafts:
        await draft.watched.wait()
    wanted = len(drafts)
    await rig.info_when(
        lambda info: sum(not state.message for state in info.drafts) == wanted and info.targets[0].ready
    )
    return rig, stream


async def test_a_submission_carries_draft_shape_and_reason(make_target, make_draft, make_rig) -> None:
    draft = await make_draft()
    rig, stream = await up(make_target, make_rig, [draft])
    call = rig.generate()
    decision = (await stream.next_submission()).decision
    assert (decision.draft, decision.reason) == (draft.address, "policy:adaptive")
    assert [(rung.max_running_requests, rung.shape) for rung in decision.ladder] == [(0, SHAPE)]
    call.cancel()


async def test_a_request_overrides_the_policy(make_target, make_draft, make_rig) -> None:
    draft = await make_draft()
    rig, stream = await up(make_target, make_rig, [draft], speculative_policy="off")
    overrides = [
        None,
        router_pb2.SpeculationOverride(disable=True),
        router_pb2.SpeculationOverride(shape=OWN),
    ]
    seen = []
    for override in overrides:
        call = rig.generate(speculation=override)
        decision = (await stream.next_submission()).decision
        seen.append((decision.draft, decision.reason, [rung.shape for rung in decision.ladder]))
        call.cancel()
    assert seen == [("", "policy:off", []), ("", "request", []), (draft.address, "request", [OWN])]


async def test_the_threshold_turns_running_requests_off_and_on_again(make_target, make_draft, make_rig) -> None:
    draft = await make_draft()
    rig, stream = await up(
        make_target, make_rig, [draft], speculative_disable_batch_threshold=8, speculative_hysteresis=2
    )
    call = rig.generate()
    submission = await stream.next_submission()
    assert [(rung.max_running_requests, rung.shape) for rung in submission.decision.ladder] == [(8, SHAPE)]
    stream.load(running_requests=8, prefilling_requests=40)
    stream.load(running_requests=9)
    update = await soon(stream.updates.get())
    assert list(update) == [submission.request]
    off = update[submission.request]
    assert (off.draft, off.reason) == (draft.address, "threshold:9>8")
    assert [(rung.max_running_requests, rung.shape) for rung in off.ladder] == [(6, SHAPE)]
    for running in (8, 7, 9, 8, 7):
        stream.load(running_requests=running)
    stream.load(running_requests=6)
    on = (await soon(stream.updates.get()))[submission.request]
    assert on.reason == "threshold:6<=6"
    assert [(rung.max_running_requests, rung.shape) for rung in on.ladder] == [(8, SHAPE)]
    assert stream.updates.empty()
    call.cancel()


async def test_a_request_that_began_without_a_draft_gets_one_that_comes(make_target, make_draft, make_rig) -> None:
    target, late = await make_target(), await make_draft()
    await late.die()
    rig = await make_rig([target], [late])
    stream = await target.next_stream()
    call = rig.generate()
    submission = await stream.next_submission()
    assert (submission.decision.draft, submission.decision.reason) == ("", "no-draft")
    await late.start(late.port)
    update = await soon(stream.updates.get())
    assert update[submission.request].draft == late.address
    call.cancel()


async def test_requests_of_a_lost_draft_move_to_another(make_target, make_draft, make_rig) -> None:
    drafts = [await make_draft(), await make_draft()]
    rig, stream = await up(make_target, make_rig, drafts)
    call = rig.generate()
    submission = await stream.next_submission()
    lost = next(draft for draft in drafts if draft.address == submission.decision.draft)
    (other,) = [draft for draft in drafts if draft is not lost]
    await lost.die()
    assert (await soon(stream.updates.get()))[submission.request].draft == other.address
    call.cancel()


async def test_a_draining_draft_gets_no_new_requests(make_target, make_draft, make_rig) -> None:
    drafts = [await make_draft(), await make_draft()]
    rig, stream = await up(make_target, make_rig, drafts)
    drafts[0].load(draining=True)
    await rig.info_when(lambda info: not info.drafts[0].ready)
    for _ in range(2):
        call = rig.generate()
        assert (await stream.next_submission()).decision.draft == drafts[1].address
        call.cancel()


async def test_requests_spread_over_drafts(make_target, make_draft, make_rig) -> None:
    drafts = [await make_draft(), await make_draft()]
    rig, stream = await up(make_target, make_rig, drafts)
    calls, used = [], []
    for _ in range(4):
        calls.append(rig.generate())
        used.append((await stream.next_submission()).decision.draft)
    assert sorted(used) == sorted(2 * [draft.address for draft in drafts])
    assert [state.running_requests for state in (await rig.info()).drafts] == [2, 2]
    for call in calls:
        call.cancel()
    await rig.info_when(lambda info: [state.running_requests for state in info.drafts] == [0, 0])


async def test_a_draft_of_another_head_is_never_paired_and_shown_with_the_reason(
    make_target, make_draft, make_rig
) -> None:
    other = await make_draft(head_fingerprint="another")
    target = await make_target()
    rig = await make_rig([target], [other])
    stream = await target.next_stream()
    info = await rig.info_when(lambda info: "another" in info.drafts[0].message and info.targets[0].ready)
    assert not info.drafts[0].ready
    call = rig.generate()
    assert (await stream.next_submission()).decision.reason == "no-draft"
    call.cancel()


async def test_requests_move_off_a_draft_whose_link_to_their_target_broke(make_target, make_draft, make_rig) -> None:
    drafts = [await make_draft(), await make_draft()]
    rig, stream = await up(make_target, make_rig, drafts)
    call = rig.generate()
    submission = await stream.next_submission()
    (other,) = {draft.address for draft in drafts} - {submission.decision.draft}
    state = target_pb2.DraftLinkState
    stream.load(running_requests=1, drafts=[state(draft=submission.decision.draft, connected=True)])
    stream.load(running_requests=1, drafts=[state(draft=submission.decision.draft, connected=False)])
    assert (await soon(stream.updates.get()))[submission.request].draft == other
    assert stream.updates.empty()
    assert [state.running_requests for state in (await rig.info()).drafts] == [
        int(draft.address == other) for draft in drafts
    ]
    call.cancel()


async def test_requests_move_off_a_draft_that_drains_and_use_one_that_joins(make_target, make_draft, make_rig) -> None:
    late, draft = await make_draft(), await make_draft()
    await late.die()
    target = await make_target()
    rig = await make_rig([target], [late, draft])
    stream = await target.next_stream()
    await draft.watched.wait()
    await rig.info_when(lambda info: info.drafts[1].ready and info.targets[0].ready)
    calls = [rig.generate() for _ in range(2)]
    numbers = {(await stream.next_submission()).request for _ in calls}
    await late.start(late.port)
    await rig.info_when(lambda info: info.drafts[0].ready)
    calls.append(rig.generate())
    assert (await stream.next_submission()).decision.draft == late.address
    assert stream.updates.empty()
    draft.load(draining=True)
    moved = await soon(stream.updates.get())
    assert {number: decision.draft for number, decision in moved.items()} == dict.fromkeys(numbers, late.address)
    for call in calls:
        call.cancel()
