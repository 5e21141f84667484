"""What runs in the next step: trees, one-node trees, prompts, or nothing yet."""

import numpy as np
import pytest

from engine.pages import PageAllocator, PageTable
from paceline.tree import DraftTree
from paceline.types import Rung, SamplingParams, SpeculationDecision, TreeShape
from target_service.draft_session import ArrivedTree, DraftSession
from target_service.request import Request, RequestKey, cost_of
from target_service.scheduler import Limits, Moment, schedule
from target_service.sequence import Sequence
from target_service.sequence_table import SequenceTable
from target_service.tree_nodes import columns_of, nodes_of, num_nodes

SHAPE = TreeShape(5, 1, 6)
ALWAYS = SpeculationDecision("d:1", (Rung(0, SHAPE),))
LIMITS = Limits(max_rows=64, chunked_prefill_size=16)


def sequence(number: int, *, prompt_len: int = 4, decoding: bool = True, draft: str = "") -> Sequence:
    """draft: "" (undrafted), "waits" (until 10 s), "ready" or "off"."""
    cost = cost_of(prompt_len=prompt_len, max_tokens=50, context_length=256, page_size=4)
    request = Request(
        key=RequestKey(1, number),
        prompt_ids=np.arange(prompt_len, dtype=np.int32),
        emitted_ids=np.zeros(0, np.int32),
        params=SamplingParams(max_tokens=50),
        decision=ALWAYS if draft in ("waits", "ready") else SpeculationDecision("d:1" if draft else ""),
        cost=cost,
    )
    pages = PageTable(PageAllocator(100, 4))
    pages.reserve(prompt_len + 50 + 64)
    table = SequenceTable(1, context_length=256, page_size=4)
    seq = Sequence(request, pages, table, limit=prompt_len + 50, eos_token_ids=())
    if decoding:
        seq.committed_len = prompt_len
        seq.tokens[prompt_len] = 7
        seq.is_decoding = True
    if draft:
        seq.draft = DraftSession("d:1", session=number, epoch=1)
    if draft in ("waits", "ready"):
        seq.draft.ask(seq.committed_len, shape=SHAPE, now_s=0.0, deadline_s=10.0)
    if draft == "ready":
        nodes = nodes_of(DraftTree.chain([7, 1, 2, 3, 4, 5]))
        seq.draft.on_tree(ArrivedTree(1, prompt_len, nodes), committed_len=prompt_len, root_token=7)
    return seq


def turns(due) -> list[tuple[int, int]]:
    """Request and nodes, in the order of the step."""
    trees = [(seq.key.request, num_nodes(tree)) for seq, tree in zip(due.drafted, due.trees, strict=True)]
    return trees + [(seq.key.request, 1) for seq in due.missing + due.plain]


def look(*sequences, limits=LIMITS, now_s=5.0, **moment):
    return schedule(sequences, limits, Moment(now_s, len(sequences), **moment))


def test_an_arrived_tree_is_verified():
    assert turns(look(sequence(1, draft="ready"))) == [(1, 6)]


def test_an_undrafted_request_verifies_one_node():
    due = look(sequence(1), sequence(2, draft="off"))
    assert turns(due) == [(1, 1), (2, 1)]
    assert not due.missing


def test_a_request_whose_tree_is_on_its_way_is_waited_for():
    due = look(sequence(1, draft="waits"), sequence(2, draft="ready"))
    assert due.is_empty
    assert due.until_s == 10.0


def test_past_the_deadline_it_decodes_plainly_and_its_tree_is_missing():
    due = look(sequence(1, draft="waits"), sequence(2, draft="ready"), now_s=10.0)
    assert sorted(turns(due)) == [(1, 1), (2, 6)]
    assert [seq.key.request for seq in due.missing] == [1]


@pytest.mark.parametrize("busy", [{"decoding": False}, {}], ids=["prompt", "undrafted"])
def test_meanwhile_prompts_and_undrafted_requests_run_with_what_is_ready(busy):
    due = look(sequence(1, draft="waits"), sequence(2, draft="ready"), sequence(3, **busy))
    assert (2, 6) in turns(due)
    assert 1 not in [number for number, _ in turns(due)]
    assert not due.is_empty


def test_nothing_to_do_is_nothing_to_wait_for():
    due = look()
    assert due.is_empty
    assert due.until_s is None


def test_a_tree_that_came_before_speculation_went_off_is_left():
    seq = sequence(1, draft="ready")
    seq.decision = SpeculationDecision("d:1")
    assert turns(look(seq)) == [(1, 1)]
    assert seq.draft.tree is None


def test_prompts_come_first_in_first_out_in_chunks():
    due = look(*(sequence(n, prompt_len=10, decoding=False) for n in (1, 2, 3)))
    chunks = [(chunk.seq.key.request, chunk.start, chunk.stop, chunk.is_last) for chunk in due.chunks]
    assert chunks == [(1, 0, 10, True), (2, 0, 6, False)]


def test_rows_are_shared_among_roots_then_prompts_then_trees():
    limits = Limits(max_rows=20, chunked_prefill_size=16)
    due = look(
        sequence(1, draft="ready"),
        sequence(2, draft="ready"),
        sequence(3, prompt_len=12, decoding=False),
        limits=limits,
    )
    assert turns(due) == [(1, 6), (2, 2)]
    assert due.chunks[0].stop == 12


def test_a_tree_that_does_not_fit_is_cut_to_its_first_nodes():
    due = look(sequence(1, draft="ready"), limits=Limits(max_rows=3, chunked_prefill_size=16))
    assert columns_of(due.trees[0]).tolist() == [[7, 1, 2], [-1, 0, 1]]


def test_past_the_rows_those_that_waited_longest_go_first():
    sequences = [sequence(n) for n in (1, 2, 3)]
    for seq, last_step in zip(sequences, (5, 4, 3), strict=True):
        seq.table.last_step[seq.row] = last_step
    due = look(*sequences, limits=Limits(max_rows=2, chunked_prefill_size=16))
    assert turns(due) == [(2, 1), (3, 1)]


def of_half(half: int, number: int, **state) -> Sequence:
    seq = sequence(number, **state)
    seq.half = half
    return seq


def test_split_a_half_waits_for_its_own_trees_alone():
    due = look(of_half(0, 1, draft="ready"), of_half(0, 2, draft="waits"), of_half(1, 3, draft="ready"), is_split=True)
    assert turns(due) == [(3, 6)]


def test_split_the_half_whose_turn_it_is_goes_first():
    one, other = of_half(0, 1, draft="ready"), of_half(1, 2, draft="ready")
    one.table.last_step[one.row] = 8
    other.table.last_step[other.row] = 7
    assert turns(look(one, other, is_split=True)) == [(2, 6)]


def test_behind_a_step_under_way_nothing_but_the_other_halfs_trees_begins_a_step():
    under_way = of_half(0, 1, draft="waits")
    under_way.is_running = True
    newcomer, plain, prompt = of_half(0, 2, draft="ready"), sequence(3), sequence(4, decoding=False)
    assert look(under_way, newcomer, plain, prompt, is_split=True, is_busy=True).is_empty
    due = look(under_way, newcomer, plain, prompt, of_half(1, 5, draft="ready"), is_split=True, is_busy=True)
    assert turns(due) == [(5, 6), (3, 1)]
    assert len(due.chunks) == 1


def test_behind_a_step_under_way_a_late_tree_is_still_waited_for():
    under_way = of_half(0, 1, draft="waits")
    under_way.is_running = True
    others = (of_half(1, 2, draft="ready"), of_half(1, 3, draft="waits"))
    assert look(under_way, *others, now_s=11.0, is_split=True, is_busy=True).is_empty
    under_way.is_running = False
    assert turns(look(*others, now_s=11.0, is_split=True)) == [(2, 6), (3, 1)]
