"""GrowthForward: trees that grow on the device from start to end, in buckets of sessions that a graph may hold."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.draft_batch import min_scores
from engine.extend_batch import ExtendBatch
from engine.graph_capture import Capture, Launch
from engine.groves import Grove
from engine.growth_layouts import GrowthLayouts, LaidOut
from engine.head_model import HeadModel
from engine.pool import HeadCache
from engine.proposal_ranking import NoiseRows, Ranked, SessionNoise, rank_greedy, rank_noised
from engine.round_arena import RoundArena
from kernels.growth import BeamRows, GrowingTrees, GrowthInputs, GrowthShape
from kernels.ops import AttentionPlan, AttentionPlanner, AttentionTables
from kernels.round_tables import NUM_GROWTH_COLUMNS, Grown, Growth, GrowthLayout, PageLists, Room, Wishes, growth_tables


class Trees(NamedTuple):
    """page_indptr: the byte of the lists of pages of all sessions of the batch, where all of them grow and the lists
    have their scratch nodes' pages; -1: there are none."""

    grove: Grove
    shapes: np.ndarray  # int64 [4, b] of the batch: num_steps, topk, num_nodes, min_path_permille
    page_indptr: int = -1


class StagedGrowth(NamedTuple):
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
        self._min_scores = min_scores()
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
        self.layouts = GrowthLayouts(planner, arena.middle)
        self._captured: dict[tuple[LaidOut, bool], _Growth] = {}

    def keys(self, shapes: Sequence[GrowthShape]) -> list[tuple[LaidOut, bool]]:
        """Of each graph to capture for these shapes, the largest first. bool: whether sessions sample."""
        laid_out = [self.layouts.of(shape, size) for shape in shapes for size in self.layouts.buckets(shape)]
        keys = itertools.product(laid_out, (False, True))
        return sorted(keys, key=lambda key: key[0].num_sessions * key[0].shape.topk, reverse=True)

    def capture(self, key: tuple[LaidOut, bool], spare: ExtendBatch, capture: Capture) -> None:
        """Captures a key's growth. spare: one session on the cache's spare page. MUTATES that page."""
        grove = Grove(key[0], np.zeros(1, np.int64))
        grown = self._fill(self._arena.stage(), spare, Trees(grove, spare.shapes))
        self._arena.send(self._arena.middle, grown.stop)
        growth = self._growth(*key)
        self._captured[key] = _Growth(growth.trees, capture(growth.launch))

    def fill(self, stage: np.ndarray, batch: ExtendBatch, trees: Trees) -> StagedGrowth:
        """MUTATES the arena's stage; its launch MUTATES the cache past the sessions' rows."""
        grown = self._fill(stage, batch, trees)
        laid_out, places = trees.grove
        growth = self._captured.get((laid_out, grown.is_noised)) or self._growth(laid_out, grown.is_noised)
        nodes, count = growth.trees.nodes, len(places)
        return StagedGrowth(grown.stop, growth.launch, nodes if count == laid_out.num_sessions else nodes[:count])

    def _fill(self, stage: np.ndarray, batch: ExtendBatch, trees: Trees) -> Grown:
        held = batch.held
        laid_out, places = trees.grove
        wishes = Wishes(trees.shapes, held.seed, held.temperature, self._min_scores)
        return growth_tables(
            stage,
            laid_out.array,
            batch.rows,
            growth=Growth(wishes, places, trees.page_indptr, laid_out.variant),
            at=PageLists(self._arena.middle, laid_out.stop),
            room=self._room,
        )

    def _growth(self, laid_out: LaidOut, is_noised: bool) -> _Growth:
        shape, num_sessions, numbers = laid_out.shape, laid_out.num_sessions, laid_out.numbers
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
        noise = SessionNoise(seed, temperature.view(torch.float64), committed_len) if is_noised else None
        plan = self._planner.plan(self._tables(numbers), num_sessions * shape.topk, laid_out.variant)
        return _Growth(trees, partial(self._launch, trees, places, noise, plan))

    def _tables(self, layout: GrowthLayout) -> AttentionTables:
        """The beams' lengths and ancestors are written on the device, level by level."""
        return self._arena.attention_tables(
            layout,
            layout.num_sessions,
            local_len=self._local_len,
            is_causal=self._is_causal,
            ancestors=self._rows.ancestors,
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


class _Growth(NamedTuple):
    """A growth at fixed addresses."""

    trees: GrowingTrees
    launch: Launch
