"""What a draft's service tells beside its trees: what it took, its load, a round with its slots, its counts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from draft_service.replies import SessionCode
from paceline.v1 import draft_pb2
from tests.support.draft_peer import Part, Running, sync_rows
from tests.support.tiny_draft import random_prompt

Serve = Callable[..., AbstractAsyncContextManager[Running]]


async def test_rows_without_an_ask_are_acknowledged(serve: Serve) -> None:
    prompt = random_prompt(10)
    async with serve() as running:
        target = await running.connect()
        await target.send(open=[(1, 64)], parts=[Part(1, 1, 0, prompt, None)])
        status = await target.status(1, 1)
        assert (status.code, status.committed_len) == (SessionCode.OK, 10)
        assert not target.proposals


async def test_the_load_is_reported_at_once_and_when_it_changes(serve: Serve) -> None:
    async with serve() as running:
        watch = running.stub.WatchLoad(draft_pb2.WatchLoadRequest(min_interval_ms=10))
        first = await watch.read()
        assert (first.num_sessions, first.max_sessions, first.busy, first.draining) == (0, 8, 0.0, False)
        assert first.free_pages == first.num_pages == running.service.info.num_pages
        assert first.incarnation == running.service.info.incarnation
        target = await running.connect()
        prompt = random_prompt(60)
        await target.send(open=[(1, 64)])
        for num_rows in range(1, 61):  # one step alone is less than busy is rounded to
            await target.ask(1, num_rows, prompt[:num_rows], base_len=num_rows - 1)
        seen = [await watch.read()]
        while not (seen[-1].busy > 0 and seen[-1].propose_ms > 0):
            seen.append(await watch.read())
        assert seen[-1].num_sessions == 1
        watch.cancel()


async def test_a_round_can_be_inspected_with_its_slots_and_links(serve: Serve) -> None:
    prompt = random_prompt(10)
    async with serve() as running:
        empty = (await running.stub.InspectRound(draft_pb2.DraftServiceInspectRoundRequest())).round
        assert empty.step == 0
        rounds = running.stub.WatchRounds(draft_pb2.DraftServiceWatchRoundsRequest())
        await rounds.initial_metadata()
        target = await running.connect()
        await target.send(open=[(1, 64)])
        tree = await target.ask(1, 1, prompt)
        await rounds.read()  # a tree may come before its round is on the board
        view = (await running.stub.InspectRound(draft_pb2.DraftServiceInspectRoundRequest())).round
        extend, verify = view.extend_input, view.verify_input
        assert list(extend.kv_indptr) == [0, 10]
        assert list(extend.kv_indices) == list(range(10))
        assert list(extend.verified_id) == prompt.tokens.tolist()
        assert list(extend.hidden_states.shape) == [10, 32]
        assert list(verify.positions) == (10 + tree.depths()).tolist()
        assert list(verify.custom_mask) == tree.ancestors().tolist()
        for name, links in (
            ("retrieve_index", range(tree.num_nodes)),
            ("retrieve_next_token", tree.first_child()),
            ("retrieve_next_sibling", tree.next_sibling()),
        ):
            tensor = getattr(verify, name)
            assert list(tensor.shape) == [1, tree.num_nodes]
            assert memoryview(tensor.data).cast("i").tolist() == list(links)
        assert {"plan", "propose"} <= set(view.timings_ms)
        brief = await running.stub.InspectRound(draft_pb2.DraftServiceInspectRoundRequest(brief=True))
        for name in ("hidden_states", "kv_indptr", "kv_indices"):
            extend.ClearField(name)
        assert brief.round == view
        await target.ask(1, 2, prompt, base_len=10)
        assert (await rounds.read()).round.verify_input.session == [1]
        rounds.cancel()


async def test_refusals_rows_and_trees_are_counted(serve: Serve) -> None:
    async with serve(max_running_requests=1) as running:
        target, sync = await running.connect(), await running.sync()
        rounds = running.stub.WatchRounds(draft_pb2.DraftServiceWatchRoundsRequest())
        await rounds.initial_metadata()
        await target.send(open=[(1, 64), (2, 64)])
        await target.status(2)
        await sync.write(sync_rows(1, 0, random_prompt(6)))
        await sync.read()
        tree = await target.ask(1, 1, random_prompt(9), base_len=6)
        while not (await rounds.read()).round.verify_input.session:  # a tree may come before it is counted
            pass

        def count(name: str, **labels: str) -> float | None:
            return running.registry.get_sample_value(f"paceline_draft_{name}", labels)

        assert count("replies_total", kind="open", code="full") == 1
        assert count("replies_total", kind="round", code="ok") == 1
        assert count("rows_total", kind="bulk") == 6
        assert count("rows_total", kind="round") == 3
        assert count("trees_total") == 1
        assert count("tree_nodes_total") == tree.num_nodes
        assert count("sessions") == 1
