"""Sessions and trees through the service: real gRPC on loopback, a tiny random head."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import grpc

from draft_service.replies import SessionCode
from paceline.codec import encode_sampling_params
from paceline.types import MAX_SCRATCH_NODES, SamplingParams, TreeShape
from paceline.v1 import draft_pb2
from tests.support.draft_peer import Part, Running, sync_rows
from tests.support.tiny_draft import CONTEXT, TREE, Alone, assert_same_tree, random_prompt

Serve = Callable[..., AbstractAsyncContextManager[Running]]


async def test_the_first_message_says_what_the_draft_is(serve: Serve) -> None:
    async with serve() as running:
        target = await running.connect()
        info = (await running.stub.GetInfo(draft_pb2.DraftServiceGetInfoRequest())).info
        assert target.info is not None
        assert target.info.info == info
        assert info.service == "draft"
        assert (info.vocab_size, info.feature_size, info.context_length) == (97, 32, CONTEXT)
        assert info.incarnation
        assert info.feature_id


async def test_a_session_gives_the_drafters_own_tree(serve: Serve, alone: Alone) -> None:
    prompt = random_prompt(11)
    async with serve() as running:
        target = await running.connect()
        await target.send(open=[(1, 64)])
        assert (await target.status(1)).code == SessionCode.OK
        assert_same_tree(await target.ask(1, 1, prompt), alone.tree(prompt))


async def test_a_session_is_refused_when_the_draft_is_full_and_says_so(serve: Serve) -> None:
    async with serve(max_running_requests=2) as running:
        target = await running.connect()
        await target.send(open=[(1, 64), (2, 64), (3, 64)])
        codes = [(await target.status(session)).code for session in (1, 2, 3)]
        assert codes == [SessionCode.OK, SessionCode.OK, SessionCode.FULL]
        await target.send(release=[1], open=[(4, 64)])
        assert (await target.status(4)).code == SessionCode.OK


async def test_a_session_is_refused_when_the_pool_is_full_and_taken_once_pages_are_free(serve: Serve) -> None:
    async with serve(max_total_tokens=256) as running:  # room for two sessions of 64 tokens and their scratch
        target = await running.connect()
        await target.send(open=[(1, 64), (2, 64), (3, 64)])
        codes = [(await target.status(session)).code for session in (1, 2, 3)]
        assert codes == [SessionCode.OK, SessionCode.OK, SessionCode.FULL]
        await target.send(release=[2], open=[(4, 64)])
        assert (await target.status(4)).code == SessionCode.OK


async def test_the_end_of_a_stream_frees_what_it_held(serve: Serve) -> None:
    async with serve() as running:
        start = running.service.info.num_pages
        stays, goes = await running.connect(7), await running.connect(8)
        await stays.send(open=[(1, 60)])
        await goes.send(open=[(1, 60), (2, 60)])
        for target, session in ((stays, 1), (goes, 1), (goes, 2)):
            await target.status(session)
        each = (60 + MAX_SCRATCH_NODES) // 4
        await running.free_pages(start - 3 * each)
        await goes.end()
        await running.free_pages(start - each)
        stays.call.cancel()
        await running.free_pages(start)


async def test_rows_in_chunks_give_the_tree_of_rows_at_once(serve: Serve, alone: Alone) -> None:
    prompt = random_prompt(45)
    async with serve(max_bulk_rows=8) as running:
        target, sync = await running.connect(), await running.sync()
        await target.send(open=[(1, 100)])
        await target.status(1)
        for base, stop in ((0, 20), (20, 21), (21, 40)):
            await sync.write(sync_rows(1, base, prompt[base:stop]))
            response = await sync.read()
            assert (response.session, response.code, response.committed_len) == (1, SessionCode.OK, stop)
        assert_same_tree(await target.ask(1, 1, prompt, base_len=40), alone.tree(prompt))


async def test_the_end_of_a_sync_stream_frees_no_session(serve: Serve, alone: Alone) -> None:
    prompt = random_prompt(9)
    async with serve() as running:
        target, sync = await running.connect(), await running.sync()
        await target.send(open=[(1, 64)])
        await target.status(1)
        await sync.write(sync_rows(1, 0, prompt[:6]))
        await sync.read()
        await sync.done_writing()
        assert await sync.read() is grpc.aio.EOF
        assert_same_tree(await target.ask(1, 1, prompt, base_len=6), alone.tree(prompt))


async def test_an_extend_after_a_hole_is_answered_with_the_own_length_and_a_replay_heals_it(
    serve: Serve, alone: Alone
) -> None:
    prompt = random_prompt(20)
    async with serve() as running:
        target = await running.connect()
        await target.send(open=[(1, 64)])
        await target.ask(1, 1, prompt[:8])
        await target.send(parts=[Part(1, 2, 15, prompt[15:])])
        status = await target.status(1, 2)
        assert (status.code, status.committed_len) == (SessionCode.LENGTH_DIFFERS, 8)
        assert_same_tree(await target.ask(1, 3, prompt, base_len=8), alone.tree(prompt))


async def test_an_ask_that_overtook_its_bulk_rows_is_served_when_they_come(serve: Serve, alone: Alone) -> None:
    prompt = random_prompt(20)
    async with serve() as running:
        target, sync = await running.connect(), await running.sync()
        await target.send(open=[(1, 64)], parts=[Part(1, 1, 15, prompt[15:])])
        assert (await target.status(1, 1)).code == SessionCode.LENGTH_DIFFERS
        await sync.write(sync_rows(1, 0, prompt[:15]))
        assert (await sync.read()).code == SessionCode.OK
        proposal = await target.proposal(1, 1)
        assert proposal.base_len == 20
        assert_same_tree(proposal.tree, alone.tree(prompt))


async def test_two_targets_with_the_same_session_numbers_do_not_mix(serve: Serve, alone: Alone) -> None:
    prompts = {7: random_prompt(12, seed=1), 8: random_prompt(15, seed=2)}
    async with serve() as running:
        targets = [await running.connect(incarnation) for incarnation in prompts]
        for target in targets:
            await target.send(open=[(1, 64)], parts=[Part(1, 1, 0, prompts[target.incarnation][:9])])
        for target in targets:
            await target.proposal(1, 1)
            prompt = prompts[target.incarnation]
            assert_same_tree(await target.ask(1, 2, prompt, base_len=9), alone.tree(prompt))


async def test_many_sessions_in_one_batch_give_the_trees_that_each_gives_alone(serve: Serve, alone: Alone) -> None:
    shapes = {1: TREE, 2: TreeShape(1, 4, 5), 3: TreeShape(5, 1, 6), 4: TreeShape(3, 8, 60), 5: TREE}
    prompts = {session: random_prompt(3 + 5 * session, seed=session) for session in shapes}
    async with serve() as running:
        target = await running.connect()
        await target.send(
            open=[(session, 64) for session in shapes],
            parts=[Part(session, 1, 0, prompts[session], shape) for session, shape in shapes.items()],
        )
        for session, shape in shapes.items():
            proposal = await target.proposal(session, 1)
            assert_same_tree(proposal.tree, alone.tree(prompts[session], shape))


async def test_a_repeated_round_gets_its_reply_again(serve: Serve) -> None:
    prompt = random_prompt(10)
    async with serve() as running:
        target = await running.connect()
        await target.send(open=[(1, 64)])
        first = await target.ask(1, 1, prompt)
        assert_same_tree(await target.ask(1, 1, prompt), first)
        assert running.draft.engine.has_work is False


async def test_what_a_tree_left_in_scratch_does_not_reach_the_next_round(serve: Serve, alone: Alone) -> None:
    prompt = random_prompt(30)
    async with serve() as running:
        target = await running.connect()
        await target.send(open=[(1, 64)])
        for round_, stop in enumerate((7, 8, 13, 14, 30), start=1):
            base = (0, 7, 8, 13, 14)[round_ - 1]
            tree = await target.ask(1, round_, prompt[:stop], base_len=base)
            assert_same_tree(tree, alone.tree(prompt[:stop]))


async def test_a_tree_is_given_again_without_new_rows(serve: Serve, alone: Alone) -> None:
    prompt = random_prompt(10)
    async with serve() as running:
        target = await running.connect()
        await target.send(open=[(1, 64)])
        await target.ask(1, 1, prompt)
        assert_same_tree(await target.ask(1, 2, prompt, base_len=10), alone.tree(prompt))


async def test_a_sampled_session_ranks_with_its_own_noise(serve: Serve, alone: Alone) -> None:
    prompt = random_prompt(12)
    params = [SamplingParams(temperature=1.0, seed=seed) for seed in (1, 2)]
    async with serve() as running:
        target = await running.connect()
        for session, sampling in enumerate(params, start=1):
            await target.send(open=[(session, 64)], sampling=sampling)
        trees = [await target.ask(session, 1, prompt) for session in (1, 2)]
        for tree, sampling in zip(trees, params, strict=True):
            assert_same_tree(tree, alone.tree(prompt, sampling=sampling))
        assert trees[0].tokens.tolist() != trees[1].tokens.tolist()


async def test_trees_shrink_near_the_contexts_end(serve: Serve) -> None:
    prompt = random_prompt(CONTEXT - 1)
    async with serve() as running:
        target = await running.connect()
        await target.send(open=[(1, CONTEXT)])
        depths = {}
        held = 0
        for round_, left in enumerate((6, 3, 2, 1), start=1):
            rows = prompt[: CONTEXT - left]
            tree = await target.ask(1, round_, rows, base_len=held)
            depths[left] = int(tree.depths().max())
            held = CONTEXT - left
        assert depths == {6: 4, 3: 2, 2: 1, 1: 0}


async def test_a_release_while_a_proposal_is_queued_frees_the_session(serve: Serve) -> None:
    prompt = random_prompt(10)
    async with serve() as running:
        start = running.service.info.num_pages
        target = await running.connect()
        await target.send(open=[(session, 64) for session in range(1, 7)])
        for session in range(1, 7):
            await target.send(parts=[Part(session, 1, 0, prompt)])
            await target.send(release=[session])
        await running.free_pages(start)
        await target.send(parts=[Part(3, 2, 10, prompt)], release=[3, 99])
        assert (await target.status(3, 2)).code == SessionCode.UNKNOWN


async def test_a_session_that_is_opened_and_released_in_one_message_leaves_nothing(serve: Serve) -> None:
    async with serve() as running:
        target = await running.connect()
        await target.send(open=[(1, 64)], release=[1])
        await target.send(open=[(2, 64)])
        await target.status(2)
        assert running.service.info.num_pages - running.draft.engine.table.allocator.num_free == 32


async def test_sampling_travels_with_the_open(serve: Serve) -> None:
    async with serve() as running:
        target = await running.connect()
        params = encode_sampling_params(SamplingParams(temperature=0.5, top_k=7, seed=2**64 - 1))
        opening = draft_pb2.OpenSession(session=1, max_len=64, sampling_params=params)
        await target.call.write(draft_pb2.SpeculateRequest(open=[opening]))
        assert (await target.status(1)).code == SessionCode.OK
        tree = await target.ask(1, 1, random_prompt(5))
        assert tree.num_nodes > 1
