"""Drafts that are late, wrong, full, forgetful, hung or gone: each costs speed alone, and little of it."""

import dataclasses

import pytest

from paceline.tree import DraftTree
from paceline.types import SamplingParams, TreeShape
from target_service.deadline import PRIOR_ACCEPTED_LENGTH
from target_service.draft_session import ArrivedTree
from target_service.engine_loop import HEAD_START_S, IDLE_WAIT_S
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
    TreesArrived,
)
from target_service.tree_nodes import columns_of, nodes_of
from tests.support.driven_drafts import DrivenDraft
from tests.support.tiny_draft import VOCAB
from tests.support.tiny_target import DRAFT, STREAM, always, random_prompt

TREE = TreeShape(4, 3, 10)
LONG = SamplingParams(max_tokens=40, ignore_eos=True)


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
    tree = ArrivedTree(1, len(held.tokens), nodes_of(head_draft.propose(held, TREE)))
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


def test_a_tree_for_which_plain_decoding_would_not_have_waited_is_used(loop, head_draft):
    """What it took is spent: dropped, it would have been drafted for nothing."""
    head_draft.silent = True
    output = loop.submit(50, random_prompt(5), params=LONG, decision=always(TREE))
    for _ in range(3):
        loop.turn()
        head_draft.serve()
    (session,), (held,) = head_draft.sessions, head_draft.sessions.values()
    tree = ArrivedTree(1, len(held.tokens), nodes_of(head_draft.propose(held, TREE)))
    break_even_s = (PRIOR_ACCEPTED_LENGTH - 1) * loop.parts.times.expect(1) / 1e3
    loop.clock.now_s += 1.5 * break_even_s
    loop.turn()
    loop.put(TreesArrived(head_draft.at, [session], [tree]))
    head_draft.silent = False
    head_draft.run()
    assert output.finish.stats.late_rounds == 0
    assert loop.metric("paceline_target_trees_total", verdict="late") == 0


def test_a_draft_that_hangs_costs_a_request_one_deadline(loop, head_draft):
    head_draft.silent = True
    output = loop.submit(50, random_prompt(5), params=LONG, decision=always(TREE))
    waits = 0
    while output.finish is None:
        wait_s = loop.turn()
        head_draft.serve()
        waits += HEAD_START_S < wait_s < IDLE_WAIT_S
        loop.clock.now_s += wait_s
    assert waits == 1
    assert len(head_draft.asks) == 1


def wrong_root(nodes):
    columns = columns_of(nodes).copy()
    columns[0, 0] = (columns[0, 0] + 1) % 97
    return columns.tobytes()


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        (lambda a: a._replace(round=a.round + 1), "wrong"),
        (lambda a: a._replace(base_committed_len=a.base_committed_len + 1), "wrong"),
        (lambda a: a._replace(nodes=wrong_root(a.nodes)), "wrong"),
        (lambda a: a._replace(nodes=nodes_of(DraftTree.chain(range(64)))), "wrong"),
        (lambda a: a._replace(round=a.round - 1), "late"),
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
    arrived = ArrivedTree(1, len(held.tokens), nodes_of(head_draft.propose(held, TREE)))
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
            at, [session], [ArrivedTree(number, length, nodes_of(DraftTree.chain([VOCAB, 3])))]
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
        seen = len(loop.orders)
        loop.turn()
        loop.clock.now_s += 0.01
        for orders in loop.orders[seen:]:
            asks = orders[DRAFT].asks if DRAFT in orders else None
            if asks is not None:
                num_asks += 1
                length = asks.base_committed_len[0] + asks.num_tokens[0]
                loop.put(answer(at, asks.session[0], asks.round[0], length))
    assert output.tokens == plain
    assert num_asks


def test_a_tree_of_an_earlier_connection_is_dropped(loop, head_draft):
    head_draft.silent = True
    loop.submit(50, random_prompt(5), params=LONG, decision=always(TREE))
    for _ in range(3):
        loop.turn()
        head_draft.serve()
    (session,), (held,) = head_draft.sessions, head_draft.sessions.values()
    arrived = ArrivedTree(1, len(held.tokens), nodes_of(head_draft.propose(held, TREE)))
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


def links_told(loop) -> list[dict[str, bool]]:
    """Of each load report since the last look."""
    loads = [emission.load for emission in loop.emissions if emission.load is not None]
    loop.emissions.clear()
    return [{link.draft: link.connected for link in load.drafts} for load in loads]


def test_an_idle_target_tells_of_links_that_break_and_come_back_but_not_of_one_that_is_being_made(loop, head_proposer):
    draft = DrivenDraft(loop, head_proposer)
    loop.generate(random_prompt(5), SamplingParams(max_tokens=2, ignore_eos=True), always(TREE))
    loop.turn()
    told = links_told(loop)
    assert told
    assert not any(told)
    for happens, connected in ((draft.connect, True), (draft.lose, False), (draft.connect, True)):
        happens()
        loop.turn()
        loop.turn()
        assert links_told(loop) == [{DRAFT: connected}]


def test_a_draft_to_which_no_link_can_be_made_is_told_of(loop, head_proposer):
    draft = DrivenDraft(loop, head_proposer)
    loop.generate(random_prompt(5), SamplingParams(max_tokens=2, ignore_eos=True), always(TREE))
    draft.epoch = 1
    draft.lose()
    loop.turn()
    loop.turn()
    assert links_told(loop)[-1] == {DRAFT: False}


def test_a_draft_whose_link_gave_up_is_linked_again_when_it_is_named(loop, head_draft):
    loop.turn()
    head_draft.lose()
    loop.put(LinkGone(head_draft.at))
    loop.turn()
    assert not loop.parts.drafts.drafts
    loop.submit(50, random_prompt(5), params=LONG, decision=always(TREE))
    loop.turn()
    assert any(DRAFT in orders for orders in loop.orders), "an order for a new address wants a link"
    head_draft.connect()
    head_draft.run()
    assert head_draft.asks


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
    new = loop.orders[-1][DRAFT].syncs
    assert len(new) == 1
    loop.orders[-1][DRAFT].syncs = []
    loop.put(RowsSynced(head_draft.at, session, SessionCode.LENGTH_DIFFERS, len(held.tokens)))
    head_draft.run()
    assert output.tokens == plain
    assert output.finish.stats.speculative_rounds > 0


def test_a_connection_without_an_answer_for_the_timeout_is_given_up(loop, head_draft, caplog):
    head_draft.silent = True
    params = dataclasses.replace(LONG, max_tokens=60)
    output = loop.submit(50, random_prompt(5), params=params, decision=always(TREE))
    resets = []
    while output.finish is None:
        loop.clock.now_s += loop.turn() + 0.2
        head_draft.serve()
        resets += [orders[DRAFT].reset for orders in loop.orders if DRAFT in orders and orders[DRAFT].reset]
    assert resets[0] == "no answer for 5 s"
    head_draft.lose(LossReason.HUNG)
    loop.turn()
    assert loop.metric("paceline_target_draft_losses_total", draft=DRAFT, reason="hung") == 1
    assert "1 requests decode plainly" in caplog.text


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
