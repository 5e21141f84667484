"""DeviceDrafter: a Drafter whose rounds stay on the device, from the upload of the rows to the copy of the trees."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

from engine.draft_batch import ExtendItem, fitted_shape
from engine.extend_batch import ExtendBatch
from engine.extend_forward import ExtendForward
from engine.graph_capture import Capture
from engine.growers import Growers
from engine.growth_forward import GrowthForward
from engine.head_model import HeadModel
from engine.nodes_copy import NodesCopy
from engine.pool import HeadCache
from engine.row_batch import split_rows
from engine.tree_columns import TreeColumns
from engine.tree_source import PendingTrees
from kernels.growth import GrowthShape
from paceline.tree import DraftTree
from paceline.types import MAX_SCRATCH_NODES, TreeShape, tree_shape

MAX_BEAM_ROWS = 2048  # of one level, all sessions together

_MAX_FITS = 4096  # asked shapes that are remembered
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DrafterLimits:
    """max_rows: of one extend forward. max_sessions: those of one batch that ask for a tree."""

    max_rows: int
    max_sessions: int


class DeviceDrafter:
    """Does what a Drafter does, with one wait a round: for the copy of the finished trees.

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
        self._extend = ExtendForward(model, cache, max_rows=limits.max_rows, last_hidden=last_hidden)
        self._growth = GrowthForward(
            model, cache, max_sessions=limits.max_sessions, max_rows=MAX_BEAM_ROWS, last_hidden=last_hidden
        )
        self._shapes: list[GrowthShape] = []
        self._fits: dict[tuple[int, ...], _Fit] = {}
        self._copies = [NodesCopy(limits.max_sessions, model.device) for _ in range(2)]
        self._turn = 0

    @torch.inference_mode()
    def capture(self, shapes: Sequence[TreeShape], capture: Capture) -> None:
        """Captures the forwards of all row buckets, and the growths of these shapes; a progress bar on a terminal."""
        with self._on_device():
            wanted = {GrowthShape(s.num_steps, s.eagle_topk, s.num_draft_tokens) for s in shapes}
            self._fits.clear()
            self._shapes = sorted(wanted, key=lambda s: (s.num_steps, s.topk, s.num_nodes))
            extends, growths = self._extend.keys(), self._growth.keys(self._shapes)
            with tqdm(total=len(extends) + len(growths), desc="CUDA graphs", unit="graph", disable=None) as bar:
                for extend in extends:
                    self._extend.capture(extend, capture)
                    bar.update()
                for growth in growths:
                    self._growth.capture(growth, capture)
                    bar.update()

    def extend(self, items: Sequence[ExtendItem]) -> list[DraftTree | None]:
        """Writes the rows of all items, and grows a tree for each that asks for one; None for the others.

        A tree has fewer levels where the table has no room for its scratch nodes.
        """
        return list(self.begin(ExtendBatch.of(items)).trees().trees()) if items else []

    @torch.inference_mode()
    def begin(self, batch: ExtendBatch) -> PendingTrees:
        """Launches an ``extend``. At most two may be under way; the device takes them one after the other."""
        self._turn = 1 - self._turn
        copy = self._copies[self._turn]
        steps = batch.shapes[0].tolist()
        asks_all = 0 not in steps
        asked = None if asks_all else batch.shapes[0].nonzero()[0]
        with self._on_device():
            if asked is None:
                order = self._propose(batch, copy)
            else:
                order = self._propose(batch.take(asked), copy) if len(asked) else []
                self._write(batch.take((batch.shapes[0] == 0).nonzero()[0]), keeps_hidden=False)
        return _Begun(len(batch), asked, order, copy)

    def _propose(self, batch: ExtendBatch, copy: NodesCopy) -> list[np.ndarray]:
        """Launches a batch whose sessions all ask. Returns their places in the order in which the trees will come."""
        self._write(batch, keeps_hidden=True)
        order = []
        for shape, growers in self._group(batch):
            most = self._growth.max_group(shape)
            for start in range(0, len(growers.places), most):
                some = growers if len(growers.places) <= most else growers.take(slice(start, start + most))
                copy.add(self._growth.run(some, shape, is_noised=max(some.noise.temperature.tolist()) > 0))
                order.append(some.places)
        copy.send()
        return order

    def _write(self, batch: ExtendBatch, *, keeps_hidden: bool) -> None:
        for rows in split_rows(batch, self._extend.max_rows):
            self._extend.run(rows, keeps_hidden=keeps_hidden)

    def _group(self, batch: ExtendBatch) -> list[tuple[GrowthShape, Growers]]:
        """The sessions by the shape that their trees are laid out in."""
        committed_len = batch.base_len + batch.num_rows
        growers = Growers(
            places=np.arange(len(batch)),
            roots=batch.tokens[batch.num_rows.cumsum() - 1],
            committed_len=committed_len,
            shapes=batch.shapes,
            noise=batch.noise,
            page_ids=batch.page_ids,
            page_size=batch.page_size,
        )
        rooms = np.minimum(batch.capacity - committed_len, MAX_SCRATCH_NODES)  # more is never asked for
        keys = list(zip(*batch.shapes[:3].tolist(), rooms.tolist(), strict=True))
        fits = {key: self._fit(key) for key in set(keys)}
        if any(fit.shrinks for fit in fits.values()):
            own = np.array([fits[key].shape for key in keys]).T
            growers = growers._replace(shapes=np.concatenate([own, batch.shapes[3:]]))
        layouts = {fit.laid_out for fit in fits.values()}
        if len(layouts) == 1:
            return [(layouts.pop(), growers)]
        groups: dict[GrowthShape, list[int]] = {}
        for place, key in enumerate(keys):
            groups.setdefault(fits[key].laid_out, []).append(place)
        return [(shape, growers.take(np.array(places))) for shape, places in groups.items()]

    def _fit(self, key: tuple[int, ...]) -> _Fit:
        """key: num_steps, eagle_topk and num_draft_tokens of a tree, and room for scratch nodes."""
        fit = self._fits.get(key)
        if fit is None:
            fit = self._new_fit(key)
            if len(self._fits) < _MAX_FITS:
                self._fits[key] = fit
        return fit

    def _new_fit(self, key: tuple[int, ...]) -> _Fit:
        """Laid out in the smallest captured shape that holds it and whose scratch nodes fit the room, or in its own."""
        room = key[3]
        fitted = fitted_shape(tree_shape(*key[:3]), room=room, draft_vocab_size=self._model.config.draft_vocab_size)
        own = GrowthShape(fitted.num_steps, fitted.eagle_topk, fitted.num_draft_tokens)
        numbers = own.num_steps, own.topk, own.num_nodes
        for shape in self._shapes:
            is_large = shape.num_steps >= own.num_steps and shape.topk >= own.topk and shape.num_nodes >= own.num_nodes
            if is_large and shape.num_scratch <= room:
                return _Fit(numbers, shape, numbers != key[:3])
        _log.info("trees of %s grow without a captured graph; to have one, add them to --cuda-graph-shapes", own)
        return _Fit(numbers, own, numbers != key[:3])

    @contextlib.contextmanager
    def _on_device(self) -> Iterator[None]:
        """Kernels launch on the thread's current device."""
        device = self._model.device
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            yield


@dataclass(frozen=True, slots=True)
class _Fit:
    """A tree's shape (num_steps, topk, num_nodes), the one that it is laid out in, and whether less was asked for."""

    shape: tuple[int, int, int]
    laid_out: GrowthShape
    shrinks: bool


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
