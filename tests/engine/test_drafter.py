"""Proposals against a plain head that recomputes every path: pairing, positions, scratch, noise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.drafter import Drafter, ExtendItem, ProposeParams
from engine.head_model import HeadModel
from engine.pages import PageAllocator, PageTable
from kernels.ops import AttentionBatch
from kernels.reference.ops import ReferenceOps
from paceline.tree import DraftTree
from tests.support.tiny_draft import DRAFT_VOCAB, Prompt, random_prompt, save_tiny_draft

PAGE_SIZE, NUM_PAGES = 4, 200
GREEDY = ProposeParams(4, 3, 10, seed=0, temperature=0.0)
SAMPLED = replace(GREEDY, seed=77, temperature=1.3)
CASES = {
    "tree": GREEDY,
    "chain": replace(GREEDY, num_steps=5, eagle_topk=1, num_draft_tokens=6),
    "one step": replace(GREEDY, num_steps=1, eagle_topk=4, num_draft_tokens=5),
    "64 nodes": replace(GREEDY, num_steps=9, eagle_topk=8, num_draft_tokens=64),
    "sampled tree": SAMPLED,
    "sampled chain": replace(SAMPLED, num_steps=5, eagle_topk=1, num_draft_tokens=6),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> HeadModel:
    return save_tiny_draft(Path(tmp_path_factory.mktemp("tiny"))).head(ReferenceOps())


@pytest.fixture
def allocator() -> PageAllocator:
    return PageAllocator(NUM_PAGES, PAGE_SIZE)


@pytest.fixture
def drafter(model: HeadModel) -> Drafter:
    return Drafter(model, model.make_cache(NUM_PAGES, PAGE_SIZE), max_rows=512)


def new_item(allocator: PageAllocator, prompt: Prompt, propose: ProposeParams | None, *, room: int = 64) -> ExtendItem:
    table = PageTable(allocator)
    table.reserve(len(prompt.tokens) + room)
    return ExtendItem(table, 0, prompt.tokens, prompt.features, propose)


@dataclass
class Node:
    token: int
    score: float
    parent: Node | None
    depth: int
    index: int

    def path(self) -> list[int]:
        return [*(self.parent.path() if self.parent else []), self.token]


class PlainHead:
    """One row at a time in a cache of its own: no batch, no tree mask, no scratch that is shared between paths."""

    def __init__(self, model: HeadModel, prompt: Prompt, propose: ProposeParams) -> None:
        self._model, self._prompt, self._propose = model, prompt, propose

    def children(self, path: list[int]) -> list[tuple[int, float]]:
        """The eagle_topk best tokens after the path, with their log scores."""
        model, propose = self._model, self._propose
        num_rows = len(self._prompt.tokens)
        cache = model.make_cache(8, 64)
        for row in range(num_rows):
            hidden = self._row(cache, int(self._prompt.tokens[row]), self._prompt.features[row : row + 1], row)
        for step, token in enumerate(path):
            hidden = self._row(cache, token, hidden, num_rows + step)
        logits = model.logits(hidden)[0].double()
        ids = model.target_ids(torch.arange(DRAFT_VOCAB))
        if propose.temperature:
            candidate_position = num_rows + 1 + len(path)  # the root stands at num_rows
            noise = ReferenceOps().gumbel(np.array([propose.seed], np.uint64), np.array([candidate_position]), ids)
            logits = torch.log_softmax(logits / propose.temperature, 0) + noise[0].double()
        log_probs = torch.log_softmax(logits, 0)
        best = torch.sort(log_probs, descending=True, stable=True).indices[: propose.eagle_topk]
        return [(int(ids[i]), float(log_probs[i])) for i in best]

    def tree(self) -> DraftTree:
        propose = self._propose
        found: list[Node] = []
        beam: list[Node | None] = [None]
        for depth in range(1, propose.num_steps + 1):
            level = []
            for parent in beam:
                for token, log_prob in self.children(parent.path() if parent else []):
                    score = log_prob + (parent.score if parent else 0.0)
                    level.append(Node(token, score, parent, depth, len(found) + len(level)))
            found += level
            beam = sorted(level, key=lambda n: (-n.score, n.index))[: propose.eagle_topk]
        chosen = sorted(found, key=lambda n: (-n.score, n.depth, n.index))[: propose.num_draft_tokens - 1]
        chosen.sort(key=lambda n: n.index)
        local = {id(None): 0} | {id(node): i + 1 for i, node in enumerate(chosen)}
        tokens = [int(self._prompt.tokens[-1]), *(node.token for node in chosen)]
        return DraftTree(np.array(tokens), np.array([-1, *(local[id(node.parent)] for node in chosen)]))

    def _row(self, cache, token: int, hidden: torch.Tensor, position: int) -> torch.Tensor:
        one = np.array([1], np.int32)
        batch = AttentionBatch(
            q_indptr=np.array([0, 1], np.int32),
            prefix_len=np.array([position], np.int32),
            local_len=one,
            page_indptr=np.array([0, 1], np.int32),
            page_ids=np.array([2], np.int32),
            is_causal=np.array([True]),
            ancestors=np.zeros(1, np.uint64),
            page_size=64,
        )
        at, slot = torch.tensor([position]), torch.tensor([128 + position])
        plan = ReferenceOps().plan_attention(batch)
        return self._model.forward(torch.tensor([token]), hidden, at, slot, plan, cache)


def assert_same(tree: DraftTree | None, wanted: DraftTree) -> None:
    assert tree is not None
    assert tree.tokens.tolist() == wanted.tokens.tolist()
    assert tree.parents.tolist() == wanted.parents.tolist()


@pytest.mark.parametrize("case", ["tree", "chain", "one step", "sampled tree", "sampled chain"])
def test_a_proposal_equals_that_of_a_head_that_recomputes_every_path(model, drafter, allocator, case):
    prompt = random_prompt(11)
    (tree,) = drafter.extend([new_item(allocator, prompt, CASES[case])])
    assert_same(tree, PlainHead(model, prompt, CASES[case]).tree())


def test_each_session_of_a_ragged_batch_gets_the_tree_it_gets_alone(model, drafter, allocator):
    prompts = [random_prompt(3 + 5 * i, seed=i) for i in range(len(CASES))]
    items = [new_item(allocator, p, c) for p, c in zip(prompts, CASES.values(), strict=True)]
    silent = new_item(allocator, random_prompt(6, seed=50), None)
    trees = drafter.extend([*items[:2], silent, *items[2:]])
    assert trees.pop(2) is None
    for item, tree in zip(items, trees, strict=True):
        alone = Drafter(model, model.make_cache(NUM_PAGES, PAGE_SIZE), max_rows=512).extend([item])[0]
        assert_same(tree, alone)
        assert tree.num_nodes == item.propose.num_draft_tokens


def test_rows_that_come_in_pieces_give_the_tree_of_rows_that_come_at_once(drafter, allocator):
    prompt = random_prompt(23)
    (wanted,) = drafter.extend([new_item(allocator, prompt, GREEDY)])
    pieces = new_item(allocator, prompt[:9], None)
    drafter.extend([pieces])
    drafter.extend([replace(pieces, base_len=9, tokens=prompt.tokens[9:22], features=prompt.features[9:22])])
    last = replace(pieces, base_len=22, tokens=prompt.tokens[22:], features=prompt.features[22:], propose=GREEDY)
    assert_same(drafter.extend([last])[0], wanted)


@pytest.mark.parametrize("case", ["tree", "chain", "64 nodes"])
def test_what_was_proposed_leaves_no_trace_once_true_rows_came(drafter, allocator, case):
    prompt = random_prompt(20)
    item = new_item(allocator, prompt[:12], CASES[case])
    drafter.extend([item])
    later = replace(item, base_len=12, tokens=prompt.tokens[12:], features=prompt.features[12:])
    (fresh,) = drafter.extend([new_item(allocator, prompt, CASES[case])])
    assert_same(drafter.extend([later])[0], fresh)


@pytest.mark.parametrize("max_rows", [4, 7])
def test_a_bound_on_rows_splits_forwards_and_changes_no_tree(model, drafter, allocator, max_rows):
    items = [new_item(allocator, random_prompt(5 + i, seed=i), GREEDY) for i in range(5)]
    wanted = drafter.extend(items)
    narrow = Drafter(model, model.make_cache(NUM_PAGES, PAGE_SIZE), max_rows)
    for tree, same in zip(narrow.extend(items), wanted, strict=True):
        assert_same(tree, same)


def test_a_table_without_room_for_scratch_gets_fewer_levels(model, drafter, allocator):
    prompt = random_prompt(12)
    for room, levels in ((9, 4), (8, 3), (4, 2), (0, 1)):
        (tree,) = drafter.extend([new_item(allocator, prompt, GREEDY, room=room)])
        most = 1 + 3 + (levels - 1) * 9
        shorter = replace(GREEDY, num_steps=levels, num_draft_tokens=min(10, most))
        assert_same(tree, PlainHead(model, prompt, shorter).tree())


def test_a_sampled_chain_begins_with_the_token_that_log_q_and_noise_prefer(model, drafter, allocator):
    """Over seeds, first tokens spread as q itself, for the noise is the target's."""
    prompt = random_prompt(5)
    first = []
    for seed in range(40):
        chain = replace(CASES["sampled chain"], seed=seed)
        (tree,) = drafter.extend([new_item(allocator, prompt, chain, room=8)])
        first.append(int(tree.tokens[1]))
        assert first[-1] == PlainHead(model, prompt, chain).children([])[0][0]
        allocator = PageAllocator(NUM_PAGES, PAGE_SIZE)
    assert len(set(first)) > 5


def test_siblings_carry_distinct_target_ids(drafter, allocator, model):
    (tree,) = drafter.extend(
        [new_item(allocator, random_prompt(9), replace(SAMPLED, num_steps=1, eagle_topk=60, num_draft_tokens=61))]
    )
    assert len(set(tree.tokens[1:].tolist())) == 60
    known = set(model.target_ids(torch.arange(DRAFT_VOCAB)).tolist())
    assert set(tree.tokens[1:].tolist()) <= known


def test_a_beam_wider_than_the_draft_vocabulary_is_cut_to_it(drafter, allocator):
    wide = replace(GREEDY, num_steps=2, eagle_topk=62, num_draft_tokens=64)
    (tree,) = drafter.extend([new_item(allocator, random_prompt(9), wide, room=80)])
    assert tree.num_nodes == 64
    assert (tree.parents == 0).sum() <= DRAFT_VOCAB
