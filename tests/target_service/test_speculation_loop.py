"""The decode loop with drafts: a tree never changes a token, and no draft can do harm."""

import dataclasses

import numpy as np
import pytest

from paceline.tree import DraftTree
from paceline.types import FinishReason, Rung, SamplingParams, SpeculationDecision, TreeShape
from target_service.draft_session import ArrivedTree
from target_service.events import (
    Cancelled,
    LinkEpoch,
    LinkGone,
    LinkUp,
    LossReason,
    RowsSynced,
    SessionAnswer,
    SessionCode,
    SessionsAnswered,
    SpeculationUpdated,
    TreesArrived,
)
from tests.support.driven_drafts import DrivenDraft
from tests.support.tiny_draft import VOCAB
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
    loop.submit(51, text[: len(held.tokens)], params=LONG, decision=always(CHAIN, "other:1"))
    for _ in range(12):
        loop.turn()
        straight.serve()
    (wanted,) = straight.sessions.values()
    num_rows = len(held.tokens)
    np.testing.assert_allclose(held.rows.numpy(), wanted.rows[:num_rows].numpy(), atol=2e-4)


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
    while first.finish is None:
        loop.turn()
        draft.serve()
    record = next(e.round for e in reversed(loop.emissions) if e.round is not None)
    ended = record.goes_on.index(False)
    assert len(record.goes_on) == 2
    assert len(record.walk.verified_id) == int((record.walk.accept_length + 1).sum())
    extend = loop.emissions[-1].orders[DRAFT].extend
    assert len(extend.session) == 1
    assert loop.emissions[-1].orders[DRAFT].releases == [record.sessions[ended][0]]
    draft.run()
    assert second.tokens == plain[1]


def test_a_late_tree_is_dropped(loop, head_draft):
    prompt = random_prompt(5)
    plain = loop.generate(prompt, LONG)
    head_draft.silent = True
    output = loop.submit(50, prompt, params=LONG, decision=always(TREE))
    for _ in range(3):
        loop.turn()
        head_draft.serve()
    num_tokens = len(output.tokens)
    assert loop.turn() > 0, "the request waits for its tree"
    assert len(output.tokens) == num_tokens
    (session,), (held,) = head_draft.sessions, head_draft.sessions.values()
    tree = ArrivedTree(1, len(held.tokens), head_draft.propose(held, TREE))
    loop.clock.now_s += 1.0
    loop.turn()
    assert len(output.tokens) == num_tokens + 1
    loop.put(TreesArrived(head_draft.at, [session], [tree]))
    head_draft.silent = False
    head_draft.run()
    assert output.tokens == plain
    assert output.finish.stats.late_rounds == 1
    assert loop.metric("paceline_target_trees_total", verdict="late") == 1
    assert loop.metric("paceline_target_late_rounds_total") == 1


def test_a_draft_that_hangs_costs_a_request_one_deadline(loop, head_draft):
    head_draft.silent = True
    output = loop.submit(50, random_prompt(5), params=LONG, decision=always(TREE))
    waits = 0
    while output.finish is None:
        wait_s = loop.turn()
        head_draft.serve()
        waits += wait_s > 0
        loop.clock.now_s += wait_s
    assert waits == 1
    assert len(head_draft.asks) == 1


def wrong_root(tree):
    return DraftTree(np.array([(tree.tokens[0] + 1) % 97, *tree.tokens[1:]]), tree.parents)


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        (lambda a: dataclasses.replace(a, round=a.round + 1), "wrong"),
        (lambda a: dataclasses.replace(a, base_committed_len=a.base_committed_len + 1), "wrong"),
        (lambda a: dataclasses.replace(a, tree=wrong_root(a.tree)), "wrong"),
        (lambda a: dataclasses.replace(a, tree=DraftTree.chain(range(64))), "wrong"),
        (lambda a: dataclasses.replace(a, round=a.round - 1), "late"),
    ],
    ids=["round", "base", "root", "size", "old-round"],
)
def test_a_tree_that_does_not_answer_the_ask_is_dropped(loop, head_draft, fault, verdict):
    prompt = random_prompt(5)
    plain = loop.generate(prompt, LONG)
    head_draft.silent = True
    output = loop.submit(50, prompt, params=LONG, decision=always(TREE))
    for _ in range(3):
        loop.turn()
        head_draft.serve()
    (session,), (held,) = head_draft.sessions, head_draft.sessions.values()
    arrived = ArrivedTree(1, len(held.tokens), head_draft.propose(held, TREE))
    loop.put(TreesArrived(head_draft.at, [session], [fault(arrived)]))
    loop.turn()
    assert loop.metric("paceline_target_trees_total", verdict=verdict) == 1
    assert loop.metric("paceline_target_trees_total", verdict="used") == 0
    loop.clock.now_s += 1.0
    head_draft.silent = False
    while output.finish is None:
        loop.clock.now_s += loop.turn()
        head_draft.serve()
    assert output.tokens == plain


@pytest.mark.parametrize(
    "answer",
    [
        lambda at, session, number, length: TreesArrived(
            at, [session], [ArrivedTree(number, length, DraftTree.chain([VOCAB, 3]))]
        ),
        lambda at, session, number, length: SessionsAnswered(
            at, [SessionAnswer(session, SessionCode.OK, length, number)]
        ),
        lambda at, session, number, length: SessionsAnswered(
            at, [SessionAnswer(session, SessionCode.LENGTH_DIFFERS, 0, number)]
        ),
        lambda at, session, number, length: SessionsAnswered(
            at, [SessionAnswer(session, SessionCode.LENGTH_DIFFERS, 10 * length, number)]
        ),
    ],
    ids=["wrong root", "no tree", "rows lost", "rows never sent"],
)
def test_a_draft_that_answers_at_once_and_never_right_stalls_no_request(make_loop, answer):
    loop = make_loop(speculative_tree_deadline_ms=50.0)
    at = LinkEpoch(DRAFT, 1)
    prompt = random_prompt(5)
    plain = loop.generate(prompt, LONG)
    loop.put(LinkUp(at))
    output = loop.submit(50, prompt, params=LONG, decision=always(TREE))
    num_asks = 0
    for _ in range(400):
        seen = len(loop.emissions)
        loop.turn()
        loop.clock.now_s += 0.01
        for emission in loop.emissions[seen:]:
            extend = emission.orders[DRAFT].extend if DRAFT in emission.orders else None
            if extend is not None:
                num_asks += 1
                length = int(extend.base_committed_len[0] + extend.num_tokens[0])
                loop.put(answer(at, int(extend.session[0]), int(extend.round[0]), length))
    assert output.tokens == plain
    assert num_asks


def test_a_tree_of_an_earlier_connection_is_dropped(loop, head_draft):
    head_draft.silent = True
    loop.submit(50, random_prompt(5), params=LONG, decision=always(TREE))
    for _ in range(3):
        loop.turn()
        head_draft.serve()
    (session,), (held,) = head_draft.sessions, head_draft.sessions.values()
    arrived = ArrivedTree(1, len(held.tokens), head_draft.propose(held, TREE))
    loop.put(TreesArrived(LinkEpoch(DRAFT, head_draft.epoch - 1), [session], [arrived]))
    assert loop.turn() > 0
    assert loop.metric("paceline_target_trees_total", verdict="used") == 0


def test_a_lost_draft_changes_no_token_and_is_used_again_when_it_is_back(loop, head_draft, caplog):
    prompt = random_prompt(20)
    plain = loop.generate(prompt, LONG)
    output = loop.submit(50, prompt, params=LONG, decision=always(TREE))
    while len(output.tokens) < 10:
        loop.turn()
        head_draft.serve()
    head_draft.lose()
    while len(output.tokens) < 20:
        loop.turn()
    assert [record.message for record in caplog.records if "is lost" in record.message] == [
        f"draft {DRAFT} is lost (unreachable): test; 1 requests decode plainly until it is back"
    ]
    assert loop.metric("paceline_target_draft_losses_total", draft=DRAFT, reason="unreachable") == 1
    before = loop.metric("vllm:spec_decode_num_drafts_total")
    head_draft.connect()
    head_draft.run()
    assert output.tokens == plain
    assert loop.metric("vllm:spec_decode_num_drafts_total") > before
    loop.check_all_pages_free()


def test_a_release_and_a_new_connection_in_one_turn_lose_no_order(loop, head_draft):
    first = loop.submit(50, random_prompt(5), params=LONG, decision=always(TREE))
    second = loop.submit(51, random_prompt(6), params=LONG, decision=always(TREE))
    while not first.tokens or not second.tokens:
        loop.turn()
        head_draft.serve()
    loop.put(Cancelled(STREAM, [50]))
    head_draft.lose()
    head_draft.connect()
    num_asks = len(head_draft.asks)
    head_draft.run()
    assert len(head_draft.asks) > num_asks
    assert len(second.tokens) == 40


def test_a_draft_whose_link_gave_up_is_linked_again_when_it_is_named(loop, head_draft):
    loop.turn()
    head_draft.lose()
    loop.put(LinkGone(head_draft.at))
    loop.turn()
    assert not loop.parts.drafts.drafts
    loop.submit(50, random_prompt(5), params=LONG, decision=always(TREE))
    loop.turn()
    assert any(DRAFT in emission.orders for emission in loop.emissions), "an order for a new address wants a link"
    head_draft.connect()
    head_draft.run()
    assert head_draft.asks


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


def test_a_full_draft_leaves_the_request_plain_and_is_asked_again_later(loop, head_draft):
    head_draft.full = True
    prompt = random_prompt(5)
    plain = loop.generate(prompt, LONG)
    output = loop.submit(50, prompt, params=LONG, decision=always(TREE))
    while len(output.tokens) < 10:
        loop.turn()
        head_draft.serve()
    assert loop.metric("paceline_target_sessions_refused_total", code="full") == 1
    head_draft.full = False
    loop.clock.now_s += 2.0
    head_draft.run()
    assert output.tokens == plain
    assert output.finish.stats.speculative_rounds > 0


def test_a_draft_that_lost_rows_gets_them_again_from_its_own_length(loop, head_draft):
    prompt = random_prompt(20)
    plain = loop.generate(prompt, LONG)
    head_draft.silent = True
    output = loop.submit(50, prompt, params=LONG, decision=always(TREE))
    while not head_draft.asks:
        loop.turn()
        head_draft.serve()
    (session,), (held,) = head_draft.sessions, head_draft.sessions.values()
    held.tokens, held.features = held.tokens[:16], [held.rows[:16]]
    loop.put(SessionsAnswered(head_draft.at, [SessionAnswer(session, SessionCode.LENGTH_DIFFERS, 16, 1)]))
    head_draft.silent = False
    head_draft.run()
    assert output.tokens == plain
    assert head_draft.asks[1][1] == 16
    assert output.finish.stats.speculative_rounds > 0


def test_a_sync_that_does_not_join_up_is_sent_again(loop, head_draft):
    prompt = random_prompt(120)
    plain = loop.generate(prompt, LONG)
    output = loop.submit(50, prompt, params=LONG, decision=always(TREE))
    for _ in range(3):
        loop.turn()
        head_draft.serve()
    (session,), (held,) = head_draft.sessions, head_draft.sessions.values()
    loop.turn()
    new = loop.emissions[-1].orders[DRAFT].syncs
    assert len(new) == 1
    loop.emissions[-1].orders[DRAFT].syncs = []
    loop.put(RowsSynced(head_draft.at, session, SessionCode.LENGTH_DIFFERS, len(held.tokens)))
    head_draft.run()
    assert output.tokens == plain
    assert output.finish.stats.speculative_rounds > 0


def test_a_connection_without_an_answer_for_the_timeout_is_given_up(loop, head_draft):
    head_draft.silent = True
    params = dataclasses.replace(LONG, max_tokens=60)
    output = loop.submit(50, random_prompt(5), params=params, decision=always(TREE))
    resets = []
    while output.finish is None:
        loop.clock.now_s += loop.turn() + 0.2
        head_draft.serve()
        resets += [e.orders[DRAFT].reset for e in loop.emissions if DRAFT in e.orders and e.orders[DRAFT].reset]
    assert resets[0] == "no answer for 5 s"
    head_draft.lose(LossReason.HUNG)
    loop.turn()
    assert loop.metric("paceline_target_draft_losses_total", draft=DRAFT, reason="hung") == 1


def test_a_hung_draft_is_given_up_long_before_a_long_deadline(make_loop, head_proposer):
    loop = make_loop(speculative_tree_deadline_ms=float("inf"))
    draft = DrivenDraft(loop, head_proposer)
    draft.connect()
    draft.silent = True
    output = loop.submit(50, random_prompt(5), params=LONG, decision=always(TREE))
    since_s = loop.clock.now_s
    while output.finish is None:
        wait_s = loop.turn()
        assert wait_s <= 1.0
        loop.clock.now_s += wait_s
        draft.serve()
    assert 5.0 < loop.clock.now_s - since_s < 10.0


def test_a_wait_that_a_cancel_ended_is_not_in_the_next_steps_load(loop, head_draft):
    head_draft.silent = True
    loop.submit(50, random_prompt(5), params=LONG, decision=always(TREE))
    while not head_draft.asks:
        loop.turn()
        head_draft.serve()
    loop.turn()
    loop.put(Cancelled(STREAM, [50]))
    loop.turn()
    loop.clock.now_s += 600.0
    loop.submit(51, random_prompt(5))
    loop.turn()
    assert loop.emissions[-1].load.step.tree_wait_ms == 0.0


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
