"""The link over real gRPC: a draft that is gone, wrong, mad or hung is one branch each, and a good one works."""

import asyncio
import random

import grpc
import pytest

from paceline.rpc import RpcServer
from paceline.types import SamplingParams, TreeShape
from paceline.v1 import draft_pb2, target_pb2
from target_service.draft_orders import DraftOrders, OpenOrder
from target_service.events import LinkDown, LinkGone, LinkUp, LossReason, SessionCode, SessionsAnswered, TreesArrived
from target_service.tree_nodes import columns_of
from tests.support.scripted_draft import ScriptedDraft, info, linked, real_draft, scripted, status, verify
from tests.support.target_peer import submission
from tests.support.tiny_target import always, random_prompt
from tests.support.waiting import WAIT_S

TREE = TreeShape(4, 3, 10)


async def test_a_link_says_hello_and_comes_up():
    draft = ScriptedDraft(info())
    async with scripted(draft) as address, linked(address) as (link, next_event):
        up = await next_event()
        assert isinstance(up, LinkUp)
        assert (up.at.draft, up.at.epoch) == (address, 1)
        assert draft.requests[0].hello == draft_pb2.DraftHello(
            incarnation=5, target="test", feature_id="f", head_fingerprint="h"
        )
        link.send(DraftOrders(1, opens=[OpenOrder(9, 50, SamplingParams(seed=4))]))
        link.send(DraftOrders(1, releases=[8]))
        link.send(DraftOrders(77, releases=[1]))
        await asyncio.wait_for(draft.got.wait(), WAIT_S)
        sent = draft.requests[1]
        assert [(o.session, o.max_len, o.sampling_params.seed) for o in sent.open] == [(9, 50, 4)]
        assert list(sent.release) == [8], "orders that wait are merged, and those of another connection dropped"


@pytest.mark.parametrize(
    ("draft", "reason", "message"),
    [
        (
            ScriptedDraft(info(feature_id="other")),
            LossReason.MISMATCH,
            "its feature_id is 'other' and",
        ),
        (ScriptedDraft(info(vocab_size=5)), LossReason.MISMATCH, "its vocab_size is 5"),
        (ScriptedDraft(status=grpc.StatusCode.FAILED_PRECONDITION), LossReason.MISMATCH, "scripted"),
        (ScriptedDraft(b""), LossReason.GARBAGE, "carries no info"),
        (ScriptedDraft(b"\xff\xff\xff random"), LossReason.GARBAGE, ""),
        (ScriptedDraft(), LossReason.HUNG, "no hello within"),
    ],
    ids=["feature", "vocabulary", "refused", "no-info", "bytes", "silent"],
)
async def test_a_draft_that_does_not_fit_is_reported_once(monkeypatch, draft, reason, message):
    monkeypatch.setattr("target_service.draft_link.HELLO_TIMEOUT_S", 0.3 if reason is LossReason.HUNG else WAIT_S)
    monkeypatch.setattr("target_service.draft_link.MISFIT_RETRY_S", 0.02)
    async with scripted(draft) as address, linked(address) as (_, next_event):
        down = await next_event()
        assert isinstance(down, LinkDown)
        assert down.reason is reason
        assert message in down.message
        await asyncio.wait_for(draft.third_request.wait(), WAIT_S)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(next_event(), 0.05)


@pytest.mark.parametrize("kind", ["target", "router"])
async def test_a_service_of_another_kind_is_named_with_whose_flag_to_mend(kind):
    server = RpcServer(f"paceline.v1.{kind.title()}Service")
    address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    async with linked(address) as (_, next_event):
        down = await next_event()
        assert (type(down), down.reason) == (LinkDown, LossReason.MISMATCH)
        assert down.message == f"what answers there is a {kind}, not a draft: mend the router's --drafts"
    await server.stop(0)


@pytest.mark.parametrize(
    "garbage",
    [
        random.Random(0).randbytes(64) + b"\xff",
        verify(draft_token=[5, 97]),
        verify(draft_token=[5]),
        verify(parents=[-1, 1]),
        verify(num_tokens_per_req=[65], draft_token=range(65), parents=range(-1, 64)),
        verify(round=[1, 2]),
        status(code=[9]),
        status(round=[]),
    ],
    ids=["bytes", "vocabulary", "short", "parents", "size", "columns", "code", "status"],
)
async def test_garbage_ends_the_connection_and_says_so(garbage):
    async with scripted(ScriptedDraft(info(), verify(), garbage)) as address, linked(address) as (_, next_event):
        assert isinstance(await next_event(), LinkUp)
        trees = await next_event()
        assert isinstance(trees, TreesArrived)
        assert columns_of(trees.trees[0].nodes).tolist() == [[5, 6], [-1, 0]]
        down = await next_event()
        assert isinstance(down, LinkDown)
        assert down.reason is LossReason.GARBAGE


async def test_a_tree_of_another_incarnation_is_dropped():
    draft = ScriptedDraft(info(), verify(incarnation=4), status())
    async with scripted(draft) as address, linked(address) as (_, next_event):
        assert isinstance(await next_event(), LinkUp)
        answered = await next_event()
        assert isinstance(answered, SessionsAnswered)
        assert answered.answers[0].code is SessionCode.OK


async def test_an_unreachable_draft_is_reported_once_and_used_when_it_comes():
    async with scripted(ScriptedDraft(info())) as address:
        pass
    async with linked(address) as (_, next_event):
        down = await next_event()
        assert (type(down), down.reason) == (LinkDown, LossReason.UNREACHABLE)
        port = int(address.rsplit(":", 1)[1])
        async with scripted(ScriptedDraft(info()), port):
            assert isinstance(await next_event(), LinkUp)
        lost = await next_event()
        assert (type(lost), lost.reason) == (LinkDown, LossReason.UNREACHABLE)


async def test_a_link_that_cannot_connect_gives_up(monkeypatch):
    monkeypatch.setattr("target_service.draft_link.GIVE_UP_S", 0.05)
    async with scripted(ScriptedDraft()) as address:
        pass
    async with linked(address) as (link, next_event):
        assert isinstance(await next_event(), LinkDown)
        assert isinstance(await next_event(), LinkGone)
        assert link.is_gone


async def test_a_reset_ends_the_connection_as_hung():
    async with scripted(ScriptedDraft(info())) as address, linked(address) as (link, next_event):
        up = await next_event()
        link.send(DraftOrders(up.at.epoch, reset="no answer for 5 s"))
        down = await next_event()
        assert (down.reason, down.message) == (LossReason.HUNG, "no answer for 5 s")
        again = await next_event()
        assert isinstance(again, LinkUp)
        assert again.at.epoch > up.at.epoch


async def test_a_real_draft_service_speculates_and_changes_no_token(serve_target, tiny_target, loop):
    prompts = [random_prompt(n, seed=n) for n in (3, 20, 60)]
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    plain = [loop.generate(prompt, params) for prompt in prompts]
    async with (
        real_draft(tiny_target) as (address, draft),
        serve_target(speculative_tree_deadline_ms=5000.0, chunked_prefill_size=16) as target,
    ):
        router = await target.connect()
        wanted = always(TREE, address)
        await router.linked(wanted)
        await router.submit(*(submission(i, p, max_tokens=40, decision=wanted) for i, p in enumerate(prompts, 1)))
        got = await router.finish(1, 2, 3)
        assert [g.tokens for g in got] == plain
        assert all(g.finish.stats.speculative_rounds > 0 for g in got)
        assert all(g.finish.stats.late_rounds == 0 for g in got)
        reply = await target.stub.InspectRound(target_pb2.TargetServiceInspectRoundRequest())
        assert reply.round.verify_input.session
        async with asyncio.timeout(WAIT_S):
            while len(draft.engine.table):  # noqa: ASYNC110 - the draft's engine thread tells nobody
                await asyncio.sleep(0.01)


async def test_a_draft_that_dies_in_mid_stream_and_comes_back_changes_no_token(serve_target, tiny_target, loop):
    prompt = random_prompt(10)
    plain = loop.generate(prompt, SamplingParams(max_tokens=200, ignore_eos=True))
    async with serve_target(speculative_tree_deadline_ms=5000.0) as target:
        router = await target.connect()
        async with real_draft(tiny_target) as (address, _):
            await router.linked(always(TREE, address))
            await router.submit(submission(1, prompt, max_tokens=200, decision=always(TREE, address)))
            while len(router.got[1].tokens) < 20:
                await router.read()
        before = target.metric("vllm:spec_decode_num_drafts_total")
        assert before > 0
        async with real_draft(tiny_target, int(address.rsplit(":", 1)[1])):
            (got,) = await router.finish(1)
            assert got.tokens == plain
            again = submission(2, prompt, max_tokens=60, decision=always(TREE, address))
            await router.submit(again)
            (got,) = await router.finish(2)
            assert got.tokens == plain[:60]
        assert target.metric("paceline_target_draft_losses_total", draft=address, reason="unreachable") >= 1
