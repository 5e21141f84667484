"""GrowthForward: trees that grow on the device from start to end, in buckets of sessions that a graph may hold."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from engine.draft_batch import min_scores
from engine.graph_capture import Capture, Launch
from engine.growers import Growers
from engine.head_model import HeadModel
from engine.pool import HeadCache
from engine.proposal_ranking import NoiseRows, Ranked, rank_greedy, rank_noised
from engine.ragged import layout_of
from engine.row_batch import first_pages, spare_batch
from kernels.growth import BeamRows, GrowingTrees, GrowthInputs, GrowthShape
from kernels.ops import AttentionBatch, AttentionPlan
from kernels.upload import Upload
from paceline.types import MAX_SCRATCH_NODES

# place, root, committed_len, num_steps, topk, num_nodes, seed, temperature, min_score; the scratch slots follow
_COLUMNS = 9


@dataclass(frozen=True, slots=True)
class GrowthKey:
    """What a graph is captured for."""

    shape: GrowthShape
    num_sessions: int
    is_noised: bool


class GrowthForward:
    """Grows trees from the hidden states in ``last_hidden``. Nothing waits for the device.

    Padded sessions start from the last place and write to the cache's spare slot.
    """

    def __init__(
        self, model: HeadModel, cache: HeadCache, *, max_sessions: int, max_rows: int, last_hidden: Tensor
    ) -> None:
        """max_rows: beam nodes of all sessions together, of one level. last_hidden: [places + 1, H]."""
        device = model.device
        self._model = model
        self._cache = cache
        self._last_hidden = last_hidden
        self._max_rows = max_rows
        self._max_sessions = max_sessions
        self._upload = Upload(((_COLUMNS + MAX_SCRATCH_NODES) * max_sessions,), torch.int64, device)
        self._attention = model.attention_buffers(cache, max_rows=max_rows, max_requests=max_sessions)
        tokens, parent_rows, positions, slots = torch.zeros((4, max_rows), dtype=torch.int64, device=device)
        self._rows = BeamRows(
            tokens=tokens,
            parent_rows=parent_rows,
            positions=positions,
            slots=slots,
            ancestors=self._attention.ancestors,
            local_len=self._attention.local_len,
        )
        self._captured: dict[GrowthKey, _Growth] = {}
        self._bucket_sizes: dict[int, list[int]] = {}  # by the largest

    @property
    def shapes(self) -> set[GrowthShape]:
        """Those that a graph was captured for."""
        return {key.shape for key in self._captured}

    def keys(self, shapes: Sequence[GrowthShape]) -> list[GrowthKey]:
        """Of each graph to capture for these shapes, the largest first."""
        keys = [
            GrowthKey(shape, bucket, is_noised)
            for shape in shapes
            for bucket in self._buckets(shape)
            for is_noised in (False, True)
        ]
        return sorted(keys, key=lambda key: key.num_sessions * key.shape.topk, reverse=True)

    def max_group(self, shape: GrowthShape) -> int:
        """Sessions that grow together at most."""
        return max(1, min(self._max_sessions, self._max_rows // shape.topk))

    def capture(self, key: GrowthKey, capture: Capture) -> None:
        """Captures a key's growth. MUTATES the cache's spare slot."""
        self._upload.send(self._stage(key, 0).size)
        growth = self._growth(key, self._attention.load(spare_batch(self._cache, key.shape.topk)))
        self._captured[key] = replace(growth, launch=capture(growth.launch))

    def run(self, growers: Growers, shape: GrowthShape, *, is_noised: bool) -> Tensor:
        """One growth of up to max_group sessions, within a shape that covers theirs. MUTATES the cache past their rows.

        Returns [sessions, 1 + 2 n] int32, as GrowingTrees.nodes says: valid until the next growth.
        """
        count = len(growers.places)
        buckets = self._buckets(shape)
        bucket = buckets[bisect_left(buckets, count)]
        key = GrowthKey(shape, bucket, is_noised)
        self._send(key, growers)
        batch = self._beam_batch(growers, shape)
        growth = self._captured.get(key)
        if growth is None:
            growth = self._growth(key, self._attention.load(batch))
        else:
            self._attention.load(batch, growth.variant)
        growth.launch()
        nodes = growth.trees.nodes
        return nodes if count == bucket else nodes[:count]

    def _buckets(self, shape: GrowthShape) -> list[int]:
        most = self.max_group(shape)
        buckets = self._bucket_sizes.get(most)
        if buckets is None:
            buckets = self._bucket_sizes[most] = [*(2**i for i in range(most.bit_length()) if 2**i < most), most]
        return buckets

    def _stage(self, key: GrowthKey, count: int) -> np.ndarray:
        """int64 [columns, sessions], of which ``count`` are to be filled; the others are padded."""
        num_columns = _COLUMNS + key.shape.num_scratch
        staged = self._upload.stage_array()[: num_columns * key.num_sessions]
        columns = staged.reshape(num_columns, key.num_sessions)
        if count < key.num_sessions:
            columns[:_COLUMNS, count:] = np.array(_padding(len(self._last_hidden) - 1))[:, None]
            columns[_COLUMNS:, count:] = self._cache.spare_slot
        return columns

    def _send(self, key: GrowthKey, growers: Growers) -> None:
        count = len(growers.places)
        columns = self._stage(key, count)
        columns[0, :count] = growers.places
        columns[1, :count] = growers.roots
        columns[2, :count] = growers.committed_len
        columns[3:6, :count] = growers.shapes[:3]
        columns[6].view(np.uint64)[:count] = growers.noise.seed
        columns[7].view(np.float64)[:count] = growers.noise.temperature
        columns[8].view(np.float64)[:count] = min_scores()[growers.shapes[3]]
        if key.shape.num_scratch:
            columns[_COLUMNS:, :count] = growers.scratch_slots(key.shape.num_scratch)
        self._upload.send(columns.size)

    def _growth(self, key: GrowthKey, variant: int) -> _Growth:
        shape, num_sessions = key.shape, key.num_sessions
        num_columns = _COLUMNS + shape.num_scratch
        columns = self._upload.tensor[: num_columns * num_sessions].view(num_columns, num_sessions)
        places, roots, committed_len, num_steps, topk, num_nodes, seed, temperature, min_score = columns[:_COLUMNS]
        inputs = GrowthInputs(
            num_steps=num_steps,
            topk=topk,
            num_nodes=num_nodes,
            min_score=min_score.view(torch.float64),
            roots=roots,
            committed_len=committed_len,
            scratch_slots=columns[_COLUMNS:],
            target_ids=self._model.all_target_ids,
        )
        trees = GrowingTrees.allocate(shape, inputs, self._rows)
        noise = _Noise(seed, temperature.view(torch.float64), committed_len) if key.is_noised else None
        plan = self._attention.plan(num_sessions * shape.topk, variant)
        return _Growth(trees, variant, partial(self._launch, trees, places, noise, plan))

    def _launch(self, trees: GrowingTrees, places: Tensor, noise: _Noise | None, plan: AttentionPlan) -> None:
        model, rows, topk = self._model, trees.rows, trees.shape.topk
        num_rows = trees.num_sessions * topk
        hidden = self._last_hidden.index_select(0, places)
        ranked = self._rank(hidden, topk, None if noise is None else noise.rows(1, 0))
        model.ops.grow_beam(trees, ranked.log_probs, ranked.draft_ids, 0)
        for level in range(1, trees.shape.num_steps):
            hidden = model.forward(
                rows.tokens[:num_rows],
                hidden.index_select(0, rows.parent_rows[:num_rows]),
                rows.positions[:num_rows],
                rows.slots[:num_rows],
                plan,
                self._cache,
            )
            ranked = self._rank(hidden, topk, None if noise is None else noise.rows(topk, level))
            model.ops.grow_beam(trees, ranked.log_probs, ranked.draft_ids, level)
        model.ops.choose_nodes(trees)

    def _rank(self, hidden: Tensor, width: int, noise: NoiseRows | None) -> Ranked:
        logits = self._model.logits(hidden)
        if noise is None:
            return rank_greedy(self._model.ops, logits, width)
        return rank_noised(self._model, logits, noise, width)

    def _beam_batch(self, growers: Growers, shape: GrowthShape) -> AttentionBatch:
        """Of the first beam, with the pages of all later ones."""
        beam = layout_of((shape.topk,) * len(growers.places))
        pages = first_pages(growers.page_ids, growers.committed_len + shape.num_scratch, growers.page_size)
        return AttentionBatch(
            q_indptr=beam.indptr,
            prefix_len=growers.committed_len.astype(np.int32),
            local_len=beam.counts,
            page_indptr=pages.indptr,
            page_ids=pages.ids,
            is_causal=beam.none,
            ancestors=beam.no_masks,
            page_size=growers.page_size,
        )


@dataclass(frozen=True, slots=True)
class _Noise:
    """How each session's candidates are ranked."""

    seed: Tensor  # [b] int64, the bit patterns of uint64
    temperature: Tensor  # [b] fp64
    committed_len: Tensor  # [b] int64

    def rows(self, width: int, level: int) -> NoiseRows:
        """Of the beam nodes, width a session, whose children stand level + 1 positions past the root."""
        columns = (self.seed, self.temperature.float(), self.committed_len + 1 + level)
        return NoiseRows(*(column.repeat_interleave(width) if width > 1 else column for column in columns))


@dataclass(frozen=True, slots=True)
class _Growth:
    """A growth at fixed addresses. variant: the attention kernel that it was planned with."""

    trees: GrowingTrees
    variant: int
    launch: Launch


def _padding(spare_place: int) -> tuple[int, ...]:
    return (spare_place, 0, 0, 1, 1, 2, 0, 0, 0)
