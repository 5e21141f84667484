"""DeviceDrafter: a Drafter whose rounds stay on the device, from the upload of the rows to the copy of the trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.draft_batch import ExtendItem
from engine.extend_batch import ExtendBatch, spare_batch
from engine.extend_forward import ExtendForward, StagedRows
from engine.graph_capture import Capture, Launch, capture_bar
from engine.groves import Groves
from engine.growth_forward import GrowthForward, StagedGrowth, Trees
from engine.growth_layouts import GrowthLayouts
from engine.head_model import HeadModel
from engine.nodes_copy import NodesCopy
from engine.pool import HeadCache
from engine.round_arena import RoundArena
from engine.tree_columns import TreeColumns
from engine.tree_source import PendingTrees
from kernels.growth import GrowthShape
from kernels.round_asks import survey
from kernels.round_tables import Piece
from paceline.tree import DraftTree
from paceline.types import MAX_SCRATCH_NODES, TreeShape

MAX_BEAM_ROWS = 2048  # of one level, all sessions together

_PAGE_ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class DrafterLimits:
    """max_rows: of one extend forward. max_sessions: those of one batch that ask for a tree."""

    max_rows: int
    max_sessions: int


class DeviceDrafter:
    """Does what a Drafter does, with one wait a round: for the copy of the finished trees. To be used by threads whose
    current device is the model's: ``engine.device.computing_on``.

    A tree grows in the graph of the smallest captured shape that covers its own; one that none covers grows by the same
    code without a graph. Sessions that ask for no tree run last, and nobody waits for them.
    """

    def __init__(self, model: HeadModel, cache: HeadCache, limits: DrafterLimits) -> None:
        self._model = model
        self._cache = cache
        self._limits = limits
        last_hidden = torch.zeros(
            (limits.max_sessions + 1, model.config.hidden_size), dtype=model.dtype, device=model.device
        )
        rows = model.attention_planner(cache, max_rows=limits.max_rows, max_requests=limits.max_rows)
        beams = model.attention_planner(cache, max_rows=MAX_BEAM_ROWS, max_requests=limits.max_sessions)
        self._arena = arena = RoundArena(
            before=ExtendForward.num_bytes(model, rows),
            behind=GrowthLayouts.num_bytes(beams) + cache.num_pages * _PAGE_ID_BYTES,
            device=model.device,
        )
        self._extend = ExtendForward(model, cache, arena, planner=rows, last_hidden=last_hidden)
        self._growth = GrowthForward(model, cache, arena, planner=beams, last_hidden=last_hidden)
        self._groves = Groves(self._growth.layouts, draft_vocab_size=model.config.draft_vocab_size)
        self._copies = [NodesCopy(limits.max_sessions, model.device) for _ in range(2)]
        self._turn = 0
        self._smallest: Launch = self._clear_spare  # until it is captured

    @torch.inference_mode()
    def capture(self, shapes: Sequence[TreeShape], capture: Capture) -> None:
        """Captures the forwards of all row buckets, and the growths of these shapes; a progress bar on a terminal."""
        self._groves.lay_out_in({GrowthShape(s.num_steps, s.eagle_topk, s.num_draft_tokens) for s in shapes})
        extends, growths = self._extend.keys(), self._growth.keys(self._groves.shapes)
        spare = spare_batch(self._cache)
        with capture_bar(len(extends) + len(growths)) as bar:
            for extend in extends:
                self._extend.capture(extend, spare, capture)
                bar.update()
            for growth in growths:
                self._growth.capture(growth, spare, capture)
                bar.update()
        self._smallest = capture(self._clear_spare)

    def extend(self, items: Sequence[ExtendItem]) -> list[DraftTree | None]:
        """Writes the rows of all items, and grows a tree for each that asks for one; None for the others.

        A tree has fewer levels where the table has no room for its scratch nodes.
        """
        return list(self.begin(ExtendBatch.of(items)).trees().trees()) if items else []

    def begin(self, batch: ExtendBatch) -> PendingTrees:
        """Launches an ``extend``. At most two may be under way; the device takes them one after the other."""
        self._turn = 1 - self._turn
        copy = self._copies[self._turn]
        seen = survey(batch.shapes, batch.held.capacity, batch.rows, MAX_SCRATCH_NODES)  # more is never asked for
        asked = None
        if seen.num_asking == len(batch):
            order = self._propose(batch, seen.key, copy)
        else:
            asked = batch.shapes[0].nonzero()[0]
            order = self._propose(batch.take(asked), None, copy) if len(asked) else []
            self._write(batch.take((batch.shapes[0] == 0).nonzero()[0]), keeps_hidden=False)
        return _Begun(len(batch), asked, order, copy)

    @property
    def captured_shapes(self) -> Sequence[GrowthShape]:
        """Those that ``capture`` was asked for, the smallest first."""
        return self._groves.shapes

    def rehearse(self, batch: ExtendBatch) -> None:
        """What ``begin`` does on the host, for few rows of sessions that all ask for one captured shape. The next
        batch's copy to the device overwrites this one; in place of each graph a small one clears the spare slot."""
        seen = survey(batch.shapes, batch.held.capacity, batch.rows, MAX_SCRATCH_NODES)
        groves, shapes = self._groves.of(batch, seen.key)
        rows, _ = self._fill(batch, Trees(groves[0], shapes))
        self._arena.send(rows.start, rows.stop)
        self._smallest()
        self._smallest()

    def _clear_spare(self) -> None:
        self._cache.k[self._cache.spare_slot].zero_()

    def _propose(self, batch: ExtendBatch, key: tuple[int, ...] | None, copy: NodesCopy) -> list[np.ndarray]:
        """Launches a batch whose sessions all ask, for trees of the key where there is one. Returns their places in the
        order in which the trees will come."""
        groves, shapes = self._groves.of(batch, key)
        if len(groves) == 1 and len(batch.rows.tokens) <= self._extend.max_rows:
            self._write_and_grow(batch, Trees(groves[0], shapes), copy)
        else:
            self._write(batch, keeps_hidden=True)
            for grove in groves:
                growth = self._growth.fill(self._arena.stage(), batch, Trees(grove, shapes))
                self._arena.send(self._arena.middle, growth.stop)
                growth.launch()
                copy.add(growth.nodes)
        copy.send()
        return [grove.places for grove in groves]

    def _write_and_grow(self, batch: ExtendBatch, trees: Trees, copy: NodesCopy) -> None:
        """All rows in one forward, and all trees in one growth: their tables travel together."""
        rows, growth = self._fill(batch, trees)
        self._arena.send(rows.start, rows.stop)
        rows.launch()
        growth.launch()
        copy.add(growth.nodes)

    def _fill(self, batch: ExtendBatch, trees: Trees) -> tuple[StagedRows, StagedGrowth]:
        laid_out, stage = trees.grove.laid_out, self._arena.stage()
        piece = Piece(0, len(batch.rows.tokens), laid_out.shape.num_scratch, True)
        rows = self._extend.fill(stage, batch, piece, pages_start=laid_out.stop)
        return rows, self._growth.fill(stage, batch, trees._replace(page_indptr=rows.page_indptr))

    def _write(self, batch: ExtendBatch, *, keeps_hidden: bool) -> None:
        for piece in self._extend.pieces(len(batch.rows.tokens), keeps_hidden=keeps_hidden):
            rows = self._extend.fill(self._arena.stage(), batch, piece, pages_start=self._arena.middle)
            self._arena.send(rows.start, rows.stop)
            rows.launch()


class _Begun:
    """PendingTrees on their way to the host."""

    def __init__(
        self, num_sessions: int, asked: np.ndarray | None, order: Sequence[np.ndarray], copy: NodesCopy
    ) -> None:
        """asked: the sessions that asked, None: all. order: the place of each tree that comes, among those."""
        self._num_sessions = num_sessions
        self._asked = asked
        self._order = order
        self._copy = copy

    def is_ready(self) -> bool:
        return not self._order or self._copy.has_arrived()

    def trees(self) -> TreeColumns:
        if not self._order:
            return TreeColumns.none(self._num_sessions)
        trees = self._copy.trees()
        if len(self._order) > 1:
            trees = trees.take(np.concatenate(self._order).argsort())
        return trees if self._asked is None else trees.spread(self._asked, self._num_sessions)
