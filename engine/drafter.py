"""Drafter: committed rows in, proposal trees out, for many sessions in one batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from engine.draft_batch import ExtendItem, ProposeParams
from engine.extend_batch import ExtendBatch
from engine.few_trees_growth import make_growth
from engine.greedy_trees import greedy_trees, grown_trees
from engine.head_model import HeadModel
from engine.pool import HeadCache
from engine.proposal_ranking import Ranker, RankRows
from engine.ragged import indptr
from engine.row_batch import first_pages, split_rows, tree_attention
from engine.tree_columns import TreeColumns
from engine.tree_growth import Beam
from engine.tree_source import PendingTrees
from kernels.ops import AttentionBatch, Ops
from paceline.tree import DraftTree
from paceline.types import TreeShape

__all__ = ["Drafter", "ExtendItem", "ProposeParams"]


class Drafter:
    """Runs the head over its pages. A session is a PageTable and a committed length, both kept by the caller.

    Positions from committed_len on are scratch: a beam node of forward i (from 1) lies in the slot of position
    committed_len + (i - 1) * eagle_topk + place and has the RoPE position committed_len + i - 1. The next
    extend overwrites it. max_rows bounds the rows of one forward.
    """

    def __init__(self, model: HeadModel, cache: HeadCache, max_rows: int) -> None:
        self._model = model
        self._cache = cache
        self._max_rows = max_rows
        self._ops: Ops = model.ops
        self._ranker = Ranker(model)

    def begin(self, batch: ExtendBatch) -> PendingTrees:
        """``extend`` of the sessions, once its trees are asked for."""
        return _NotBegun(self, batch)

    @torch.inference_mode()
    def extend(self, items: Sequence[ExtendItem]) -> list[DraftTree | None]:
        """Writes the rows of all items, then grows a tree for each that asks for one; None for the others.

        A tree has fewer levels where the table has no room for its scratch nodes.
        """
        at_once = self._grow_at_once(items)
        if at_once is not None:
            return at_once
        last_hidden = self._write(items)
        trees: list[DraftTree | None] = [None] * len(items)
        asked = [i for i, item in enumerate(items) if item.propose is not None]
        for group in self._groups(asked, items):
            members = [items[i] for i in group]
            grown = self._grow(members, [last_hidden[i] for i in group])
            for i, tree in zip(group, grown, strict=True):
                trees[i] = tree
        return trees

    def _grow_at_once(self, items: Sequence[ExtendItem]) -> list[DraftTree | None] | None:
        """``extend`` in one call of the head; None, and nothing is done, where that is not possible."""
        params = [item.propose for item in items]
        num_rows = sum(len(item.tokens) for item in items)
        num_beams = sum(p.eagle_topk for p in params if p is not None)
        is_greedy = all(p is None or p.temperature == 0 for p in params)
        if not is_greedy or not 0 < max(num_rows, num_beams) <= self._max_rows:
            return None
        vocabulary = self._model.config.draft_vocab_size
        shapes = [None if item.propose is None else item.fitted_shape(vocabulary) for item in items]
        nodes = self._model.grow(greedy_trees(items, shapes, dtype=self._model.dtype), self._cache)
        return None if nodes is None else grown_trees(items, nodes)

    def _write(self, items: Sequence[ExtendItem]) -> list[Tensor]:
        """One ragged causal forward, more where the rows pass max_rows. Returns each item's last hidden state [H]."""
        last: list[Tensor] = [torch.empty(0)] * len(items)
        for rows in split_rows(ExtendBatch.of(items), self._max_rows):
            hidden = self._forward(
                rows.tokens,
                rows.features,
                positions=rows.positions,
                slots=rows.slots,
                batch=rows.attention,
            )
            for place, row in zip(rows.places, rows.last_rows, strict=True):
                last[place] = hidden[row]
        return last

    def _grow(self, items: Sequence[ExtendItem], last_hidden: Sequence[Tensor]) -> list[DraftTree]:
        """last_hidden: [H] of each item's last row."""
        shapes = [item.fitted_shape(self._model.config.draft_vocab_size) for item in items]
        order = sorted(range(len(items)), key=lambda i: -shapes[i].num_steps)
        items, shapes = [items[i] for i in order], [shapes[i] for i in order]
        growth = make_growth(shapes)
        params = [item.propose for item in items if item.propose is not None]
        rows = RankRows.of(params, np.array([item.committed_len + 1 for item in items]))
        scratch = _Scratch(items, shapes)

        hidden = torch.stack([last_hidden[i] for i in order])
        growth.start(*self._ranker.rank(hidden, rows, growth.width))
        level = 0
        while (beam := growth.next_beam()) is not None:
            level += 1
            hidden = self._forward(
                beam.tokens,
                hidden.index_select(0, torch.from_numpy(beam.parent_row).to(hidden.device)),
                positions=scratch.committed_len[beam.session] + level - 1,
                slots=scratch.slots[scratch.start[beam.session] + beam.local],
                batch=scratch.attention_batch(beam, level),
            )
            growth.add(*self._ranker.rank(hidden, rows.take(beam.session, level), growth.width))
        trees = growth.trees([int(item.tokens[-1]) for item in items])
        return [tree for _, tree in sorted(zip(order, trees, strict=True), key=lambda pair: pair[0])]

    def _forward(
        self, tokens: np.ndarray, hidden: Tensor, *, positions: np.ndarray, slots: np.ndarray, batch: AttentionBatch
    ) -> Tensor:
        device = self._cache.k.device
        ids, where, at = (torch.from_numpy(a.astype(np.int64)).to(device) for a in (tokens, positions, slots))
        plan = self._ops.plan_attention(batch)
        return self._model.forward(ids, hidden.to(device), where, at, plan, self._cache)

    def _groups(self, asked: Sequence[int], items: Sequence[ExtendItem]) -> Iterator[list[int]]:
        """Items whose beams fit max_rows together, at least one."""
        group: list[int] = []
        room = self._max_rows
        for i in asked:
            propose = items[i].propose
            assert propose is not None
            if group and propose.eagle_topk > room:
                yield group
                group, room = [], self._max_rows
            group.append(i)
            room -= propose.eagle_topk
        if group:
            yield group


class _NotBegun:
    """PendingTrees of a drafter that computes where it is asked to."""

    def __init__(self, drafter: Drafter, batch: ExtendBatch) -> None:
        self._drafter = drafter
        self._batch = batch

    def is_ready(self) -> bool:
        return True

    def trees(self) -> TreeColumns:
        return TreeColumns.of(self._drafter.extend(self._batch.items()))


class _Scratch:
    """Slots past the committed tokens, looked up once for all levels."""

    def __init__(self, items: Sequence[ExtendItem], shapes: Sequence[TreeShape]) -> None:
        pages = ExtendBatch.of(items)
        self._page_ids, self._page_size = pages.held.page_ids, pages.held.page_size
        self._topk = np.array([shape.eagle_topk for shape in shapes])
        self.committed_len = np.array([item.committed_len for item in items])
        sizes = [(shape.num_steps - 1) * shape.eagle_topk for shape in shapes]
        ends = [item.committed_len + size for item, size in zip(items, sizes, strict=True)]
        parts = [item.table.slots(item.committed_len, end) for item, end in zip(items, ends, strict=True)]
        self.start = indptr(np.array(sizes))  # session -> its first entry of slots
        self.slots = np.concatenate(parts)

    def attention_batch(self, beam: Beam, level: int) -> AttentionBatch:
        num_sessions = beam.num_sessions
        prefix_len, topk = self.committed_len[:num_sessions], self._topk[:num_sessions]
        local_len = level * topk
        return tree_attention(
            first_pages(self._page_ids[:num_sessions], prefix_len + local_len, self._page_size),
            prefix_len=prefix_len,
            local_len=local_len,
            counts=topk,
            ancestors=beam.ancestors,
        )
