"""Replicas that come and go while the router runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.router.conftest import soon
from tests.support.scripted_list import ListedPeers

MakeRig = Callable[..., Awaitable[Any]]
MakePeer = Callable[..., Awaitable[Any]]


@pytest.fixture
def targets(tmp_path: Path) -> ListedPeers:
    return ListedPeers(tmp_path / "targets")


@pytest.fixture
def drafts(tmp_path: Path) -> ListedPeers:
    return ListedPeers(tmp_path / "drafts")


async def listed_rig(make_rig: MakeRig, targets: ListedPeers, drafts: ListedPeers) -> Any:
    return await make_rig([targets], [drafts], discovery_interval_s=0.01, speculative_policy="always")


async def test_a_target_that_is_added_takes_the_requests_that_waited(
    make_rig: MakeRig, make_target: MakePeer, targets: ListedPeers, drafts: ListedPeers, collect: Any
) -> None:
    rig = await listed_rig(make_rig, targets, drafts)
    call = rig.generate()
    target = await make_target()
    targets.name(target)
    stream = await target.next_stream()
    submission = await stream.next_submission()
    stream.tokens(submission.request, 0, [11])
    stream.finish(submission.request)
    assert [token for message in await collect(call) for token in message.token_ids] == [11]


async def test_a_target_that_is_removed_finishes_what_it_has_and_gets_no_more(
    make_rig: MakeRig, make_target: MakePeer, targets: ListedPeers, drafts: ListedPeers, collect: Any
) -> None:
    old, new = await make_target(), await make_target()
    targets.name(old)
    rig = await listed_rig(make_rig, targets, drafts)
    first = rig.generate()
    leaving = await old.next_stream()
    submission = await leaving.next_submission()

    targets.name(new)
    stream = await new.next_stream()
    info = await rig.info_when(lambda info: any(state.message == "leaving" for state in info.targets))
    assert {state.address: state.ready for state in info.targets} == {old.address: False, new.address: True}
    second = rig.generate()
    other = await stream.next_submission()

    leaving.tokens(submission.request, 0, [11])
    leaving.finish(submission.request)
    stream.tokens(other.request, 0, [12])
    stream.finish(other.request)
    assert [token for message in await collect(first) for token in message.token_ids] == [11]
    assert [token for message in await collect(second) for token in message.token_ids] == [12]
    info = await rig.info_when(lambda info: len(info.targets) == 1)
    assert info.targets[0].address == new.address


async def test_a_target_that_is_named_again_before_it_left_goes_on(
    make_rig: MakeRig, make_target: MakePeer, targets: ListedPeers, drafts: ListedPeers, collect: Any
) -> None:
    target = await make_target()
    targets.name(target)
    rig = await listed_rig(make_rig, targets, drafts)
    first = rig.generate()
    stream = await target.next_stream()
    submission = await stream.next_submission()
    targets.name()
    await rig.info_when(lambda info: info.targets[0].message == "leaving")
    targets.name(target)
    await rig.info_when(lambda info: info.targets[0].ready)
    second = rig.generate()
    other = await stream.next_submission()
    for request in (submission.request, other.request):
        stream.tokens(request, 0, [11])
        stream.finish(request)
    assert await collect(first)
    assert await collect(second)
    assert target.streams.empty()  # the same stream all along


async def test_a_target_that_left_and_comes_back_is_linked_anew(
    make_rig: MakeRig, make_target: MakePeer, targets: ListedPeers, drafts: ListedPeers
) -> None:
    target = await make_target()
    targets.name(target)
    rig = await listed_rig(make_rig, targets, drafts)
    await target.next_stream()
    targets.name()
    await rig.info_when(lambda info: not info.targets)
    targets.name(target)
    await target.next_stream()
    await rig.info_when(lambda info: len(info.targets) == 1 and info.targets[0].ready)


async def test_a_draft_that_is_added_serves_and_one_that_is_removed_hands_its_requests_over(
    make_rig: MakeRig, make_target: MakePeer, make_draft: MakePeer, targets: ListedPeers, drafts: ListedPeers
) -> None:
    target, old, new = await make_target(), await make_draft(), await make_draft()
    targets.name(target)
    drafts.name(old)
    rig = await listed_rig(make_rig, targets, drafts)
    call = rig.generate()
    stream = await target.next_stream()
    submission = await stream.next_submission()
    assert submission.decision.draft == old.address

    drafts.name(new)
    named = ""
    while named != new.address:  # the old one may go before the new one is known
        updates = await soon(stream.updates.get())
        named = updates[submission.request].draft
    await rig.info_when(lambda info: [state.address for state in info.drafts] == [new.address])
    call.cancel()


async def test_without_a_draft_left_the_request_stays_and_is_not_failed(
    make_rig: MakeRig,
    make_target: MakePeer,
    make_draft: MakePeer,
    targets: ListedPeers,
    drafts: ListedPeers,
    collect: Any,
) -> None:
    target, draft = await make_target(), await make_draft()
    targets.name(target)
    drafts.name(draft)
    rig = await listed_rig(make_rig, targets, drafts)
    call = rig.generate()
    stream = await target.next_stream()
    submission = await stream.next_submission()
    drafts.name()
    await rig.info_when(lambda info: not info.drafts)
    stream.tokens(submission.request, 0, [11])
    stream.finish(submission.request)
    assert [token for message in await collect(call) for token in message.token_ids] == [11]


async def test_what_was_known_of_a_target_that_left_is_forgotten_when_another_comes(
    make_rig: MakeRig, make_target: MakePeer, targets: ListedPeers, drafts: ListedPeers
) -> None:
    old, new, newest = await make_target(), await make_target(), await make_target()
    targets.name(old)
    rig = await listed_rig(make_rig, targets, drafts)
    for peer in (new, newest):
        targets.name(peer)
        await peer.next_stream()
        await rig.info_when(lambda info: len(info.targets) == 1 and info.targets[0].ready)
    speculation, pacing = rig.router.dispatcher._speculation, rig.router.dispatcher._pacing
    assert old.address not in speculation._switches.keys() | speculation._links.keys() | pacing._watches.keys()
