"""Drafter: committed rows in, proposal trees out, for many sessions in one batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.head_model import HeadModel
from engine.pages import PageTable, pages_for
from engine.pool import HeadCache
from engine.proposal_ranking import Ranker, RankRows
from engine.tree_growth import Beam, TreeGrowth
from kernels.ops import AttentionBatch, Ops
from paceline.tree import DraftTree
from paceline.types import TreeShape


@dataclass(frozen=True, slots=True)
class ProposeParams:
    """The tree to propose, and the request's noise, which ranks the candidates. temperature 0 is greedy."""

    num_steps: int
    eagle_topk: int
    num_draft_tokens: int
    seed: int
    temperature: float


@dataclass(frozen=True, slots=True)
class ExtendItem:
    """What a target committed for one session since the last extend, at positions [base_len, base_len + rows).

    The table holds at least base_len + rows tokens. The last of ``tokens`` is the root of a proposed tree.
    """

    table: PageTable
    base_len: int
    tokens: np.ndarray  # [rows >= 1] int32: row i carries the token of position base_len + i + 1
    features: Tensor  # [rows, H]: row i carries the feature of position base_len + i
    propose: ProposeParams | None

    @property
    def committed_len(self) -> int:
        return self.base_len + len(self.tokens)


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

    @torch.inference_mode()
    def extend(self, items: Sequence[ExtendItem]) -> list[DraftTree | None]:
        """Writes the rows of all items, then grows a tree for each that asks for one; None for the others.

        A tree has fewer levels where the table has no room for its scratch nodes.
        """
        last_hidden = self._write(items)
        trees: list[DraftTree | None] = [None] * len(items)
        asked = [i for i, item in enumerate(items) if item.propose is not None]
        for group in self._groups(asked, items):
            members = [items[i] for i in group]
            grown = self._grow(members, torch.stack([last_hidden[i] for i in group]))
            for i, tree in zip(group, grown, strict=True):
                trees[i] = tree
        return trees

    def _write(self, items: Sequence[ExtendItem]) -> list[Tensor]:
        """One ragged causal forward, more where the rows pass max_rows. Returns each item's last hidden state [H]."""
        last: list[Tensor] = [torch.empty(0)] * len(items)
        for pieces in self._pieces(items):
            counts = np.array([stop - start for _, start, stop in pieces])
            base = np.array([items[i].base_len + start for i, start, _ in pieces])
            batch = _attention_batch(
                [items[i].table for i, _, _ in pieces], prefix_len=base, local_len=counts, counts=counts
            )
            own = np.arange(counts.sum()) - np.repeat(batch.q_indptr[:-1], counts)
            hidden = self._forward(
                np.concatenate([items[i].tokens[start:stop] for i, start, stop in pieces]),
                torch.cat([items[i].features[start:stop] for i, start, stop in pieces]),
                positions=np.repeat(base, counts) + own,
                slots=np.concatenate(
                    [items[i].table.slots(items[i].base_len + a, items[i].base_len + b) for i, a, b in pieces]
                ),
                batch=batch,
            )
            for (i, _, _), row in zip(pieces, batch.q_indptr[1:] - 1, strict=True):
                last[i] = hidden[row]
        return last

    def _grow(self, items: Sequence[ExtendItem], hidden: Tensor) -> list[DraftTree]:
        """hidden: [items, H] of their last rows."""
        shapes = [self._shape(item) for item in items]
        order = np.argsort([-shape.num_steps for shape in shapes], kind="stable")
        items = [items[i] for i in order]
        growth = TreeGrowth([shapes[i] for i in order])
        params = [item.propose for item in items if item.propose is not None]
        rows = RankRows.of(params, np.array([item.committed_len + 1 for item in items]))
        scratch = _Scratch(items, [shapes[i] for i in order])

        hidden = hidden[torch.from_numpy(order).to(hidden.device)]
        growth.start(*self._ranker.rank(hidden, rows, growth.width))
        level = 0
        while (beam := growth.next_beam()) is not None:
            level += 1
            hidden = self._forward(
                beam.tokens,
                hidden[torch.from_numpy(beam.parent_row).to(hidden.device)],
                positions=scratch.committed_len[beam.session] + level - 1,
                slots=scratch.slots[scratch.start[beam.session] + beam.local],
                batch=scratch.attention_batch(beam, level),
            )
            growth.add(*self._ranker.rank(hidden, rows.take(beam.session, level), growth.width))
        trees = growth.trees([int(item.tokens[-1]) for item in items])
        return [trees[i] for i in np.argsort(order)]

    def _forward(
        self, tokens: np.ndarray, hidden: Tensor, *, positions: np.ndarray, slots: np.ndarray, batch: AttentionBatch
    ) -> Tensor:
        device = self._cache.k.device
        ids, where, at = (torch.from_numpy(a.astype(np.int64)).to(device) for a in (tokens, positions, slots))
        plan = self._ops.plan_attention(batch)
        return self._model.forward(ids, hidden.to(device), where, at, plan, self._cache)

    def _shape(self, item: ExtendItem) -> TreeShape:
        """The asked shape, less what the table or the draft vocabulary cannot hold."""
        assert item.propose is not None
        asked = item.propose
        topk = min(asked.eagle_topk, self._model.config.draft_vocab_size)
        num_steps = min(asked.num_steps, 1 + (item.table.capacity - item.committed_len) // topk)
        num_nodes = min(asked.num_draft_tokens, TreeShape.max_nodes(num_steps, topk))
        return TreeShape(num_steps, topk, num_nodes)

    def _pieces(self, items: Sequence[ExtendItem]) -> Iterator[list[tuple[int, int, int]]]:
        """(item, start, stop) of rows, at most max_rows together, in order."""
        pieces: list[tuple[int, int, int]] = []
        room = self._max_rows
        for i, item in enumerate(items):
            start = 0
            while start < len(item.tokens):
                stop = min(len(item.tokens), start + room)
                pieces.append((i, start, stop))
                room -= stop - start
                start = stop
                if room == 0:
                    yield pieces
                    pieces, room = [], self._max_rows
        if pieces:
            yield pieces

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


class _Scratch:
    """Slots past the committed tokens, looked up once for all levels."""

    def __init__(self, items: Sequence[ExtendItem], shapes: Sequence[TreeShape]) -> None:
        self._tables = [item.table for item in items]
        self._topk = np.array([shape.eagle_topk for shape in shapes])
        self.committed_len = np.array([item.committed_len for item in items])
        sizes = [(shape.num_steps - 1) * shape.eagle_topk for shape in shapes]
        ends = [item.committed_len + size for item, size in zip(items, sizes, strict=True)]
        parts = [item.table.slots(item.committed_len, end) for item, end in zip(items, ends, strict=True)]
        self.start = _indptr(np.array(sizes))  # session -> its first entry of slots
        self.slots = np.concatenate(parts)

    def attention_batch(self, beam: Beam, level: int) -> AttentionBatch:
        topk = self._topk[: beam.num_sessions]
        return _attention_batch(
            self._tables[: beam.num_sessions],
            prefix_len=self.committed_len[: beam.num_sessions],
            local_len=level * topk,
            counts=topk,
            ancestors=beam.ancestors,
        )


def _attention_batch(
    tables: Sequence[PageTable],
    *,
    prefix_len: np.ndarray,
    local_len: np.ndarray,
    counts: np.ndarray,
    ancestors: np.ndarray | None = None,
) -> AttentionBatch:
    """Causal where there are no ancestors. counts: rows of each."""
    page_size = tables[0].page_size
    stops = prefix_len + local_len
    pages = [table.page_ids[: pages_for(int(stop), page_size)] for table, stop in zip(tables, stops, strict=True)]
    q_indptr = _indptr(counts)
    return AttentionBatch(
        q_indptr=q_indptr,
        prefix_len=prefix_len.astype(np.int32),
        local_len=local_len.astype(np.int32),
        page_indptr=_indptr(np.array([len(p) for p in pages])),
        page_ids=np.concatenate(pages),
        is_causal=np.full(len(tables), ancestors is None),
        ancestors=np.zeros(q_indptr[-1], np.uint64) if ancestors is None else ancestors,
        page_size=page_size,
    )


def _indptr(counts: np.ndarray) -> np.ndarray:
    indptr = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=indptr[1:])
    return indptr
