"""The decode loop with drafts: a tree never changes a token."""

import dataclasses

import numpy as np
import pytest

from paceline.tree import DraftTree
from paceline.types import FinishReason, Rung, SamplingParams, SpeculationDecision, TreeShape
from target_service.events import Cancelled, PolicySet, SpeculationUpdated
from tests.support.driven_drafts import DrivenDraft
from tests.support.tiny_target import DRAFT, STREAM, always, off, random_prompt

CHAIN, TREE = TreeShape(5, 1, 6), TreeShape(4, 3, 10)
LONG = SamplingParams(max_tokens=40, ignore_eos=True)


@pytest.mark.parametrize(
    ("shape", "temperature"),
    [
        (CHAIN, 0.0),
        (TREE, 0.0),
        (TREE, 1.0),
        (TreeShape(1, 1, 2), 0.0),
        (TreeShape(1, 4, 5), 1.0),
        (TreeShape(5, 8, 64), 0.0),
    ],
    ids=str,
)
def test_a_real_heads_trees_change_no_token(loop, head_draft, shape, temperature):
    params = dataclasses.replace(LONG, max_tokens=24, temperature=temperature, seed=9)
    prompts = [random_prompt(n, seed=n) for n in (1, 16, 21)]
    plain = [loop.generate(prompt, params) for prompt in prompts]
    outputs = [loop.submit(50 + i, p, params=params, decision=always(shape)) for i, p in enumerate(prompts)]
    head_draft.run()
    assert [output.tokens for output in outputs] == plain
    assert all(output.finish.stats.speculative_rounds > 0 for output in outputs)
    loop.check_all_pages_free()
    head_draft.serve()
    assert not head_draft.sessions


@pytest.mark.parametrize("seed", range(5))
def test_accepted_paths_of_any_form_change_no_token(loop, make_prophet, seed):
    prompts = [random_prompt(n, seed=n) for n in (3, 16, 30)]
    plain = [loop.generate(prompt, LONG) for prompt in prompts]
    draft = make_prophet([p + t for p, t in zip(prompts, plain, strict=True)], seed)
    outputs = [loop.submit(50 + i, p, params=LONG, decision=always(TREE)) for i, p in enumerate(prompts)]
    draft.run()
    assert [output.tokens for output in outputs] == plain
    stats = [output.finish.stats for output in outputs]
    assert sum(s.accepted_drafts for s in stats) > 20
    assert all(s.rounds < 39 for s in stats)
    assert all(sum(s.accepted_by_depth) == s.accepted_drafts for s in stats)
    loop.check_all_pages_free()


def test_rows_of_accepted_paths_carry_the_features_of_a_prefill(loop, make_prophet):
    prompt = random_prompt(10)
    plain = loop.generate(prompt, LONG)
    draft = make_prophet([prompt + plain])
    loop.submit(50, prompt, params=LONG, decision=always(TREE))
    for _ in range(12):
        loop.turn()
        draft.serve()
    (held,) = draft.sessions.values()
    text = prompt + plain
    assert held.tokens == text[1 : len(held.tokens) + 1]
    straight = DrivenDraft(loop, lambda held, shape: DraftTree.single(held.tokens[-1]), address="other:1")
    straight.connect()
    loop.put(PolicySet(STREAM, join_rounds=False))  # the first draft answers no more
    loop.submit(51, text[: len(held.tokens)], params=LONG, decision=always(CHAIN, "other:1"))
    for _ in range(12):
        loop.turn()
        straight.serve()
    (wanted,) = straight.sessions.values()
    num_rows = len(held.tokens)
    np.testing.assert_allclose(held.rows.numpy(), wanted.rows[:num_rows].numpy(), rtol=1e-5, atol=2e-4)


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_short_requests_end_at_their_limit(loop, head_draft, max_tokens):
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    prompt = random_prompt(6)
    plain = loop.generate(prompt, params)
    output = loop.submit(50, prompt, params=params, decision=always(TREE))
    head_draft.run()
    assert output.tokens == plain
    assert output.reason is FinishReason.LENGTH


def test_a_stop_inside_an_accepted_run_drops_the_rest(loop, make_prophet):
    prompt = random_prompt(6)
    plain = loop.generate(prompt, LONG)
    stop = plain[20]
    cut = plain[: plain.index(stop) + 1]
    draft = make_prophet([prompt + plain])
    params = dataclasses.replace(LONG, stop_token_ids=(stop,))
    output = loop.submit(50, prompt, params=params, decision=always(CHAIN))
    draft.run()
    assert (output.tokens, output.reason) == (cut, FinishReason.STOP)


def test_a_finished_request_is_verified_and_not_extended(loop, make_prophet):
    prompts = [random_prompt(5, seed=1), random_prompt(5, seed=2)]
    plain = [loop.generate(prompt, LONG) for prompt in prompts]
    draft = make_prophet([p + t for p, t in zip(prompts, plain, strict=True)])
    short = dataclasses.replace(LONG, max_tokens=9)
    first = loop.submit(50, prompts[0], params=short, decision=always(TREE))
    second = loop.submit(51, prompts[1], params=LONG, decision=always(TREE))
    loop.turn()
    while first.finish is None:  # told in the turn after its last step
        orders = loop.orders[-1]
        loop.turn()
        draft.serve()
    record = next(e.round for e in reversed(loop.emissions) if e.round is not None)
    (ended,) = record.ended
    assert len(record.sessions) == 2
    assert len(record.walk.verified_id) == int((record.walk.accept_length + 1).sum())
    asks = orders[DRAFT].asks
    assert len(asks.session) == 1
    assert orders[DRAFT].releases == [record.sessions[ended][0]]
    draft.run()
    assert second.tokens == plain[1]


def test_off_and_on_again_leaves_no_hole_and_speculates_in_the_first_round(loop, make_prophet):
    params = dataclasses.replace(LONG, max_tokens=120)
    prompt = random_prompt(20)
    plain = loop.generate(prompt, params)
    draft = make_prophet([prompt + plain])
    output = loop.submit(50, prompt, params=params, decision=always(CHAIN))
    while len(output.tokens) < 10:
        loop.turn()
        draft.serve()
    loop.put(SpeculationUpdated(STREAM, [50], [off()]))
    while len(output.tokens) < 85:
        loop.turn()
        draft.serve()
    num_asks, num_syncs = len(draft.asks), draft.syncs
    assert num_syncs >= 2, "rows were flushed while it was off"
    loop.put(SpeculationUpdated(STREAM, [50], [always(CHAIN)]))
    loop.turn()
    draft.serve()
    _, _, rows = draft.asks[num_asks]
    assert rows <= 33
    spec_rounds = loop.metric("vllm:spec_decode_num_drafts_total")
    loop.turn()
    loop.turn()
    assert loop.metric("vllm:spec_decode_num_drafts_total") == spec_rounds + 1, "the first round has a tree"
    draft.run()
    assert output.tokens == plain


def test_a_replayed_request_rebuilds_the_drafts_rows_from_its_first_token(loop, make_prophet):
    prompt = random_prompt(20)
    plain = loop.generate(prompt, LONG)
    draft = make_prophet([prompt + plain])
    output = loop.submit(50, prompt, params=LONG, decision=always(CHAIN), emitted=plain[:11])
    output.tokens += plain[:11]
    draft.run()
    assert output.tokens == plain
    assert output.finish.stats.speculative_rounds > 0
    _, base, rows = draft.asks[0]
    assert base + rows == 31


def test_a_ladder_turns_speculation_off_for_a_burst(loop, head_draft):
    decision = SpeculationDecision(DRAFT, (Rung(1, CHAIN), Rung(0, None)), "threshold:1")
    prompts = [random_prompt(5, seed=i) for i in range(3)]
    plain = [loop.generate(prompt, LONG) for prompt in prompts]
    outputs = [loop.submit(50 + i, p, params=LONG, decision=decision) for i, p in enumerate(prompts)]
    head_draft.run()
    assert [output.tokens for output in outputs] == plain
    assert all(output.finish.stats.speculative_rounds == 0 for output in outputs)


def test_a_prompt_of_exactly_one_chunk_and_of_whole_pages(loop, head_draft):
    params = dataclasses.replace(LONG, max_tokens=12)
    for prompt_len in (16, 4, 8, 32):
        prompt = random_prompt(prompt_len)
        plain = loop.generate(prompt, params)
        output = loop.submit(1000 + prompt_len, prompt, params=params, decision=always(TREE))
        head_draft.run()
        assert output.tokens == plain


def test_prompt_rows_go_by_sync_and_the_newest_row_rides_with_the_ask(loop, head_draft):
    loop.submit(50, random_prompt(90), params=LONG, decision=always(CHAIN))
    for _ in range(9):
        loop.turn()
        head_draft.serve()
    assert head_draft.syncs >= 5
    _, base, rows = head_draft.asks[0]
    assert base + rows == 90
    assert rows <= 64


def test_a_request_moves_to_another_draft(loop, head_draft, head_proposer):
    other = DrivenDraft(loop, head_proposer, address="other:1")
    other.connect()
    prompt = random_prompt(20)
    plain = loop.generate(prompt, LONG)
    output = loop.submit(50, prompt, params=LONG, decision=always(CHAIN))
    while len(output.tokens) < 10:
        loop.turn()
        head_draft.serve()
    loop.put(SpeculationUpdated(STREAM, [50], [always(CHAIN, "other:1")]))
    while output.finish is None:
        loop.turn()
        head_draft.serve()
        other.serve()
    assert output.tokens == plain
    assert other.asks
    assert not head_draft.sessions


def test_a_hundred_speculating_requests_with_random_cancels_return_pages_and_sessions(loop, head_draft):
    rng = np.random.default_rng(1)
    for number in range(100):
        params = SamplingParams(max_tokens=int(rng.integers(1, 8)), ignore_eos=True)
        prompt = random_prompt(int(rng.integers(1, 30)), seed=number)
        loop.submit(number, prompt, params=params, decision=always(TREE))
        if rng.random() < 0.6:
            loop.turn()
            head_draft.serve()
        if rng.random() < 0.4:
            loop.put(Cancelled(STREAM, [int(rng.integers(max(0, number - 6), number + 1))]))
    head_draft.run()
    head_draft.serve()
    loop.check_all_pages_free()
    assert not head_draft.sessions


def test_speculation_up_to_the_contexts_end(loop, make_prophet):
    prompt = random_prompt(loop.context_length - 20)
    params = SamplingParams(max_tokens=1000, ignore_eos=True)
    plain = loop.generate(prompt, params)
    draft = make_prophet([prompt + plain])
    output = loop.submit(50, prompt, params=params, decision=always(TREE))
    draft.run()
    assert (output.tokens, output.reason) == (plain, FinishReason.LENGTH)
    assert len(plain) == 20
    loop.check_all_pages_free()
