"""Drafts that are late, wrong, full or forgetful: each costs speed alone, and little of it."""

import pytest

from paceline.tree import DraftTree
from paceline.types import SamplingParams, TreeShape
from target_service.deadline import PRIOR_ACCEPTED_LENGTH
from target_service.draft_session import ArrivedTree
from target_service.engine_loop import HEAD_START_S, IDLE_WAIT_S
from target_service.events import (
    Cancelled,
    LinkEpoch,
    LinkUp,
    RowsSynced,
    SessionAnswer,
    SessionCode,
    SessionsAnswered,
    TreesArrived,
)
from target_service.tree_nodes import columns_of, nodes_of
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
