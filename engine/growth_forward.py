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
from engine.extend_batch import ExtendBatch
from engine.graph_capture import Capture, Launch
from engine.groves import Grove
from engine.head_model import HeadModel
from engine.pool import HeadCache
from engine.proposal_ranking import NoiseRows, Ranked, SessionNoise, rank_greedy, rank_noised
from engine.round_arena import RoundArena, growth_layout, growth_stop
from kernels.growth import BeamRows, GrowingTrees, GrowthInputs, GrowthShape
from kernels.ops import AttentionPlan, AttentionPlanner, AttentionTables
from kernels.round_tables import NUM_GROWTH_COLUMNS, Growth, GrowthLayout, PageLists, Room, Wishes, growth_tables
from paceline.types import MAX_SCRATCH_NODES

_MAX_LAYOUTS = 4096  # that are remembered
_NO_LISTS = -1  # of pages that are there already


@dataclass(frozen=True, slots=True)
class GrowthKey:
    """What a graph is captured for."""

    shape: GrowthShape
    num_sessions: int
    is_noised: bool


@dataclass(frozen=True, slots=True)
class StagedGrowth:
    """One growth whose bytes of the arena, from its middle to ``stop``, are to be sent before its launch.

    nodes: [sessions, 1 + 2 n] int32, as GrowingTrees.nodes says: valid from the launch to the next growth's.
    """

    stop: int
    launch: Launch
    nodes: Tensor


class GrowthForward:
    """Grows trees from the hidden states in ``last_hidden``. Nothing waits for the device.

    Padded sessions start from the last place and write to the cache's spare slot.
    """

    def __init__(
        self, model: HeadModel, cache: HeadCache, arena: RoundArena, *, planner: AttentionPlanner, last_hidden: Tensor
    ) -> None:
        """planner: for beam nodes of all sessions together, of one level, and sessions, as many as its limits say.
        last_hidden: [places + 1, H]."""
        device, limits = model.device, planner.limits
        self._model = model
        self._cache = cache
        self._arena = arena
        self._planner = planner
        self._last_hidden = last_hidden
        self._room = Room(planner.rule.numbers, cache.spare_slot, len(last_hidden) - 1)
        self._max_rows, self._max_sessions = limits.max_rows, limits.max_requests
        tokens, parent_rows, positions, slots, ancestors = torch.zeros(
            (5, limits.max_rows), dtype=torch.int64, device=device
        )
        self._local_len, self._is_causal = torch.zeros((2, limits.max_requests), dtype=torch.int32, device=device)
        self._rows = BeamRows(
            tokens=tokens,
            parent_rows=parent_rows,
            positions=positions,
            slots=slots,
            ancestors=ancestors,
            local_len=self._local_len,
        )
        self._layouts: dict[tuple[GrowthShape, int], _Layout] = {}
        self._captured: dict[GrowthKey, _Growth] = {}
        self._bucket_sizes: dict[int, list[int]] = {}  # by the largest

    @staticmethod
    def num_bytes(planner: AttentionPlanner) -> int:
        """Of the arena, behind its middle, without lists of pages."""
        limits = planner.limits
        topk = -(-limits.max_rows // limits.max_requests)
        return growth_stop(growth_layout(planner.rule, limits.max_requests, topk=topk, num_scratch=MAX_SCRATCH_NODES))

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

    def capture(self, key: GrowthKey, spare: ExtendBatch, capture: Capture) -> None:
        """Captures a key's growth. spare: one session on the cache's spare page. MUTATES that page."""
        grove = Grove(key.shape, spare.shapes, np.zeros(1, np.int64))
        layout = self._layout(key.shape, key.num_sessions)
        stop, _ = self._fill(self._arena.stage(), spare, grove, layout, _NO_LISTS)
        self._arena.send(self._arena.middle, stop)
        growth = self._growth(key, layout)
        self._captured[key] = replace(growth, launch=capture(growth.launch))

    def stop(self, grove: Grove) -> int:
        """The byte of the arena behind its tables, where lists of pages may begin."""
        return self._layout_of(grove).stop

    def fill(
        self, stage: np.ndarray, batch: ExtendBatch, grove: Grove, *, page_indptr: int = _NO_LISTS
    ) -> StagedGrowth:
        """MUTATES the arena's stage; its launch MUTATES the cache past the sessions' rows.

        page_indptr: the byte of the lists of pages of all sessions of the batch, where these grow and the lists have
        their scratch nodes' pages.
        """
        layout = self._layout_of(grove)
        stop, is_noised = self._fill(stage, batch, grove, layout, page_indptr)
        key = GrowthKey(grove.shape, layout.num_sessions, is_noised)
        growth = self._captured.get(key) or self._growth(key, layout)
        nodes, count = growth.trees.nodes, len(grove.places)
        return StagedGrowth(stop, growth.launch, nodes if count == layout.num_sessions else nodes[:count])

    def _buckets(self, shape: GrowthShape) -> list[int]:
        most = self.max_group(shape)
        buckets = self._bucket_sizes.get(most)
        if buckets is None:
            buckets = self._bucket_sizes[most] = [*(2**i for i in range(most.bit_length()) if 2**i < most), most]
        return buckets

    def _layout_of(self, grove: Grove) -> _Layout:
        buckets = self._buckets(grove.shape)
        return self._layout(grove.shape, buckets[bisect_left(buckets, len(grove.places))])

    def _layout(self, shape: GrowthShape, num_sessions: int) -> _Layout:
        layout = self._layouts.get((shape, num_sessions))
        if layout is None:
            rule = self._planner.rule
            numbers = growth_layout(
                rule, num_sessions, topk=shape.topk, num_scratch=shape.num_scratch, start=self._arena.middle
            )
            layout = _Layout(
                num_sessions, np.array([*numbers]), growth_stop(numbers), rule.rows_for(shape.topk), numbers
            )
            if len(self._layouts) == _MAX_LAYOUTS:
                self._layouts.clear()
            self._layouts[shape, num_sessions] = layout
        return layout

    def _fill(
        self, stage: np.ndarray, batch: ExtendBatch, grove: Grove, layout: _Layout, page_indptr: int
    ) -> tuple[int, bool]:
        """The byte behind what is to be sent, and whether a session samples."""
        held = batch.held
        wishes = Wishes(grove.shapes, held.seed, held.temperature, min_scores())
        grown = growth_tables(
            stage,
            layout.array,
            batch.rows,
            growth=Growth(wishes, grove.places, page_indptr, layout.variant),
            at=PageLists(self._arena.middle, layout.stop),
            room=self._room,
        )
        return grown.stop, bool(grown.is_noised)

    def _growth(self, key: GrowthKey, layout: _Layout) -> _Growth:
        shape, num_sessions, numbers = key.shape, key.num_sessions, layout.numbers
        num_columns = NUM_GROWTH_COLUMNS + shape.num_scratch
        columns = self._arena.int64(numbers.columns, num_columns * num_sessions).view(num_columns, num_sessions)
        places, roots, committed_len, num_steps, topk, num_nodes, seed, temperature, min_score = columns[
            :NUM_GROWTH_COLUMNS
        ]
        inputs = GrowthInputs(
            num_steps=num_steps,
            topk=topk,
            num_nodes=num_nodes,
            min_score=min_score.view(torch.float64),
            roots=roots,
            committed_len=committed_len,
            scratch_slots=columns[NUM_GROWTH_COLUMNS:],
            target_ids=self._model.all_target_ids,
        )
        trees = GrowingTrees.allocate(shape, inputs, self._rows)
        noise = SessionNoise(seed, temperature.view(torch.float64), committed_len) if key.is_noised else None
        plan = self._planner.plan(self._tables(numbers), num_sessions * shape.topk, layout.variant)
        return _Growth(trees, partial(self._launch, trees, places, noise, plan))

    def _tables(self, layout: GrowthLayout) -> AttentionTables:
        """The beams' lengths and ancestors are written on the device, level by level."""
        arena, size = self._arena, layout.num_sessions
        return AttentionTables(
            counts=arena.int32(layout.counts, 3),
            units=arena.int32(layout.units, 4 * layout.max_units),
            q_indptr=arena.int32(layout.q_indptr, size + 1),
            prefix_len=arena.int32(layout.prefix_len, size),
            local_len=self._local_len,
            is_causal=self._is_causal,
            ancestors=self._rows.ancestors,
            page_indptr=arena.int32(layout.page_indptr, size + 1),
            page_ids=arena.page_ids,
        )

    @torch.inference_mode()
    def _launch(self, trees: GrowingTrees, places: Tensor, noise: SessionNoise | None, plan: AttentionPlan) -> None:
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


@dataclass(frozen=True, slots=True)
class _Layout:
    """Growths of one shape, of so many sessions. variant: of attention; stop: the byte behind the tables."""

    num_sessions: int
    array: np.ndarray  # int64, a GrowthLayout
    stop: int
    variant: int
    numbers: GrowthLayout


@dataclass(frozen=True, slots=True)
class _Growth:
    """A growth at fixed addresses."""

    trees: GrowingTrees
    launch: Launch
