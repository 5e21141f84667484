"""Drafts whose connection is lost or given up: no token changes, and they are used again when they are back."""

import dataclasses

from paceline.types import SamplingParams, TreeShape
from target_service.draft_session import ArrivedTree
from target_service.events import Cancelled, LinkEpoch, LinkGone, LossReason, TreesArrived
from target_service.tree_nodes import nodes_of
from tests.support.driven_drafts import DrivenDraft
from tests.support.tiny_target import DRAFT, STREAM, always, random_prompt

TREE = TreeShape(4, 3, 10)
LONG = SamplingParams(max_tokens=40, ignore_eos=True)


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
