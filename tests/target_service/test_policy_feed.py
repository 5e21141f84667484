"""What a policy may change at any time without changing a token, and what it is told of each round."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from paceline.types import Rung, SamplingParams, SpeculationDecision, TreeShape
from paceline.v1 import target_pb2
from target_service.codec import Edge, encode_batch
from target_service.events import PolicySet, SpeculationUpdated, StreamOpened
from tests.support.tiny_target import DRAFT, STREAM, always, off, random_prompt

TREE = TreeShape(4, 3, 10)
SHAPES = (None, TreeShape(1, 1, 2), TreeShape(2, 3, 5), TreeShape(3, 1, 4), TREE, TreeShape(5, 4, 7))
LONG = SamplingParams(max_tokens=40, ignore_eos=True)


def random_decision(rng: np.random.Generator) -> SpeculationDecision:
    """A ladder of up to three rungs, with a draft or without."""
    bounds = [*sorted(rng.choice(np.arange(1, 7), int(rng.integers(0, 3)), replace=False).tolist()), 0]
    rungs = tuple(Rung(bound, SHAPES[int(rng.integers(len(SHAPES)))]) for bound in bounds)
    return SpeculationDecision(DRAFT if rng.random() < 0.9 else "", rungs, "test")


@pytest.mark.parametrize("seed", range(4))
def test_random_decisions_change_no_token(loop, make_prophet, seed):
    rng = np.random.default_rng(seed)
    params = dataclasses.replace(LONG, temperature=float(seed % 2), seed=seed)
    prompts = [random_prompt(int(n), seed=seed + int(n)) for n in rng.integers(1, 30, 5)]
    plain = [loop.generate(prompt, params) for prompt in prompts]
    draft = make_prophet([p + t for p, t in zip(prompts, plain, strict=True)], seed)
    outputs = []
    for turn in range(2000):
        if len(outputs) < len(prompts) and turn % 3 == 0:
            number = len(outputs)
            outputs.append(loop.submit(100 + number, prompts[number], params=params, decision=random_decision(rng)))
        numbers = [int(n) for n in 100 + rng.integers(0, len(prompts), 2)]
        loop.put(SpeculationUpdated(STREAM, numbers, [random_decision(rng) for _ in numbers]))
        if rng.random() < 0.2:
            loop.put(PolicySet(STREAM, join_rounds=bool(rng.random() < 0.5)))
        loop.turn()
        if rng.random() < 0.7:
            draft.serve()
        loop.clock.now_s += float(rng.choice([0.0, 0.001, 1.0]))
        if len(outputs) == len(prompts) and not loop.parts.requests.sequences:
            break
    loop.settle()
    assert [output.tokens for output in outputs] == plain
    assert sum(output.finish.stats.speculative_rounds for output in outputs) > 5
    loop.check_all_pages_free()


def rounds_of(loop) -> list[tuple[int, TreeShape, int, int]]:
    """All that the stream was told, in order."""
    batches = [emission.streams[STREAM] for emission in loop.emissions if STREAM in emission.streams]
    return [
        round_
        for batch in batches
        for columns in batch.rounds
        for round_ in zip(
            columns.request.tolist(),
            columns.shapes,
            columns.num_nodes.tolist(),
            columns.accept_length.tolist(),
            strict=True,
        )
    ]


def test_routers_are_told_how_each_drafted_round_went(loop, make_prophet):
    prompts = [random_prompt(n, seed=n) for n in (3, 9)]
    plain = [loop.generate(prompt, LONG) for prompt in prompts]
    draft = make_prophet([p + t for p, t in zip(prompts, plain, strict=True)])
    decisions = (always(TREE), off())
    outputs = [
        loop.submit(50 + i, p, params=LONG, decision=d) for i, (p, d) in enumerate(zip(prompts, decisions, strict=True))
    ]
    draft.run()
    rounds = rounds_of(loop)
    stats = outputs[0].finish.stats
    assert {number for number, *_ in rounds} == {50}
    assert {shape for _, shape, _, _ in rounds} == {TREE}
    in_time = [(nodes, accepted) for _, _, nodes, accepted in rounds if nodes > 1]
    assert len(in_time) == stats.speculative_rounds
    assert sum(accepted for _, accepted in in_time) == stats.accepted_drafts
    assert sum(nodes - 1 for nodes, _ in in_time) == stats.proposed_drafts


def test_a_late_round_is_told_as_one_node(loop, make_prophet):
    prompt = random_prompt(5)
    plain = loop.generate(prompt, LONG)
    draft = make_prophet([prompt + plain])
    loop.submit(50, prompt, params=LONG, decision=always(TREE))
    for _ in range(6):
        loop.turn()
        draft.serve()
    before = len(rounds_of(loop))
    loop.turn()
    loop.clock.now_s += 1.0
    loop.turn()
    late = [round_ for round_ in rounds_of(loop)[before:] if round_[2] == 1]
    assert late and late[0] == (50, TREE, 1, 0)


def test_a_load_report_says_what_the_step_verified(loop, make_prophet):
    prompts = [random_prompt(n, seed=n) for n in (3, 9)]
    plain = [loop.generate(prompt, LONG) for prompt in prompts]
    draft = make_prophet([p + t for p, t in zip(prompts, plain, strict=True)])
    loop.submit(50, prompts[0], params=LONG, decision=always(TREE))
    loop.submit(51, prompts[1], params=LONG, decision=off())
    draft.run()
    steps = [emission.load.step for emission in loop.emissions if emission.load is not None and emission.load.step.rows]
    both = [step for step in steps if step.verified_requests == 2]
    assert any(step.drafted_requests == 1 and step.rows > 2 for step in both)
    assert all(step.rows - step.prefill_tokens >= step.verified_requests >= step.drafted_requests for step in steps)
    assert max(step.context_tokens for step in both) <= 2 * 64


def test_a_tree_that_must_wait_for_its_prompts_rows_is_asked_for_later_and_holds_nobody(loop, make_prophet):
    prompts = [random_prompt(n, seed=n) for n in (3, 20)]
    plain = [loop.generate(prompt, LONG) for prompt in prompts]
    draft = make_prophet([p + t for p, t in zip(prompts, plain, strict=True)])
    outputs = [loop.submit(50, prompts[0], params=LONG, decision=always(TREE))]
    for _ in range(3):
        loop.turn()
        draft.serve()
    outputs.append(loop.submit(51, prompts[1], params=LONG, decision=always(TREE)))
    seen = set()
    for _ in range(8):
        loop.turn()
        newcomer = next(seq for seq in loop.parts.requests.sequences.values() if seq.key.request == 51)
        if newcomer.draft is not None:
            seen.add((newcomer.draft.sync_inflight > 0, newcomer.draft.is_asking))
        draft.serve()
    draft.run()
    assert (True, False) in seen and (False, True) in seen and (True, True) not in seen
    assert [output.tokens for output in outputs] == plain


def test_joined_prompts_and_plain_requests_wait_for_the_trees(loop, make_prophet):
    prompts = [random_prompt(n, seed=n) for n in (3, 9, 20)]
    plain = [loop.generate(prompt, LONG) for prompt in prompts]
    draft = make_prophet([p + t for p, t in zip(prompts, plain, strict=True)])
    loop.put(PolicySet(STREAM, join_rounds=True))
    outputs = [loop.submit(50, prompts[0], params=LONG, decision=always(TREE))]
    for _ in range(5):
        loop.turn()
        draft.serve()
    outputs.append(loop.submit(51, prompts[1], params=LONG, decision=off()))
    outputs.append(loop.submit(52, prompts[2], params=LONG, decision=off()))
    loop.turn()
    loop.turn()  # the step before has been told by now
    steps = len(loop.emissions)
    loop.turn()
    assert loop.parts.requests.sequences and len(loop.emissions) == steps, "it stepped while a tree was on its way"
    draft.run()
    assert [output.tokens for output in outputs] == plain


def test_a_router_without_requests_has_no_say_in_whether_rounds_are_joined(loop):
    other = STREAM + 1
    loop.put(StreamOpened(other))
    loop.put(PolicySet(STREAM, join_rounds=False))
    loop.put(PolicySet(other, join_rounds=True))
    loop.submit(1, random_prompt(4), params=LONG)
    loop.turn()
    assert loop.parts.requests.join_rounds is False
    loop.submit(2, random_prompt(5), params=LONG, stream=other)
    loop.turn()
    assert loop.parts.requests.join_rounds is True


def test_the_rounds_of_merged_batches_are_appended_and_name_each_shape_once(loop, make_prophet):
    prompt = random_prompt(4)
    plain = loop.generate(prompt, LONG)
    draft = make_prophet([prompt + plain])
    loop.submit(50, prompt, params=LONG, decision=always(TREE))
    for turn in range(12):
        if turn == 6:
            loop.put(SpeculationUpdated(STREAM, [50], [always(TreeShape(2, 3, 5))]))
        loop.turn()
        draft.serve()
    told = rounds_of(loop)
    batches = [emission.streams[STREAM] for emission in loop.emissions if STREAM in emission.streams]
    merged = batches[0]
    for later in batches[1:]:
        merged.merge(later)
    message = encode_batch(merged).rounds
    shapes = [(s.num_steps, s.eagle_topk, s.num_draft_tokens) for s in message.shapes]
    assert shapes == [(4, 3, 10), (2, 3, 5)]
    named = [shapes[i] for i in message.shape]
    assert named == [(shape.num_steps, shape.eagle_topk, shape.num_draft_tokens) for _, shape, _, _ in told]
    assert list(message.accept_length) == [accepted for *_, accepted in told]


def test_a_batch_policy_says_only_what_is_set():
    edge = Edge(vocab_size=10, context_length=64, page_size=4)
    for wish in ({"join_rounds": True}, {"join_rounds": False}, {"max_rows": 7}, {}):
        message = target_pb2.ServeRequest(batch_policy=target_pb2.BatchPolicy(**wish))
        assert edge.decode(message, 3) == [PolicySet(3, **wish)]


async def test_the_warm_up_is_told_in_the_first_message(serve_target):
    async with serve_target() as target:
        router = await target.connect()
        rows = [time.rows for time in router.info.step_times]
        assert rows[:4] == [1, 2, 4, 6]
        assert rows == sorted(rows)
        assert all(time.ms > 0 for time in router.info.step_times)
