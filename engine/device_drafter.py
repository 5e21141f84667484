"""DeviceDrafter: a Drafter whose rounds stay on the device, from the upload of the rows to the copy of the trees."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from engine.draft_batch import ExtendItem, PendingTrees, split_rows
from engine.extend_forward import ExtendForward
from engine.graph_capture import Capture
from engine.growth_forward import Grower, GrowthForward
from engine.head_model import HeadModel
from engine.pool import HeadCache
from kernels.growth import GrowthShape
from paceline.tree import MAX_NODES, DraftTree
from paceline.types import MAX_SCRATCH_NODES, TreeShape

MAX_BEAM_ROWS = 2048  # of one level, all sessions together

_MAX_FITS = 4096  # asked shapes that are remembered
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DrafterLimits:
    """max_rows: of one extend forward. max_sessions: items of one ``extend`` that ask for a tree."""

    max_rows: int
    max_sessions: int


class DeviceDrafter:
    """Does what a Drafter does, with one wait a round: for the copy of the finished trees.

    A tree grows in the graph of the smallest captured shape that covers its own; one that none covers grows by the same
    code without a graph. Items that ask for no tree run last, and nobody waits for them.
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
        self._fits: dict[tuple[int, int, int, int], _Fit] = {}
        self._copies = [_NodesCopy(limits.max_sessions, model.device) for _ in range(2)]
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
        return self.begin(items).trees()

    @torch.inference_mode()
    def begin(self, items: Sequence[ExtendItem]) -> PendingTrees:
        """Launches an ``extend``. At most two may be under way; the device takes them one after the other."""
        if not items:
            return _Nothing()
        asked = [item for item in items if item.propose is not None]
        self._turn = 1 - self._turn
        copy = self._copies[self._turn]
        with self._on_device():
            self._write(asked)
            order = self._grow(asked, copy)
            copy.send()
            if len(asked) < len(items):
                self._write([item for item in items if item.propose is None])
        return _Begun(items, order, copy)

    def _write(self, items: Sequence[ExtendItem]) -> None:
        for pieces in split_rows(items, self._extend.max_rows):
            self._extend.run(pieces)

    def _grow(self, items: Sequence[ExtendItem], copy: _NodesCopy) -> list[int]:
        """Launches the growth of each item's tree; the items' places in the order in which the trees will come."""
        order = []
        for shape, growers in self._group(items).items():
            most = self._growth.max_group(shape)
            for start in range(0, len(growers), most):
                some = growers[start : start + most]
                is_noised = any(g.item.propose is not None and g.item.propose.temperature > 0 for g in some)
                copy.add(self._growth.run(some, shape, is_noised=is_noised))
                order += [grower.place for grower in some]
        return order

    def _group(self, items: Sequence[ExtendItem]) -> dict[GrowthShape, list[Grower]]:
        groups: dict[GrowthShape, list[Grower]] = {}
        for place, item in enumerate(items):
            params = item.propose
            assert params is not None
            committed_len = item.committed_len
            room = min(item.table.capacity - committed_len, MAX_SCRATCH_NODES)  # more is never asked for
            key = (params.num_steps, params.eagle_topk, params.num_draft_tokens, room)
            fit = self._fits.get(key)
            if fit is None:
                fit = self._fit(item, room)
                if len(self._fits) < _MAX_FITS:
                    self._fits[key] = fit
            groups.setdefault(fit.laid_out, []).append(Grower(place, item, committed_len, fit.shape))
        return groups

    def _fit(self, item: ExtendItem, room: int) -> _Fit:
        """Laid out in the smallest captured shape that holds it and whose scratch nodes fit the room, or in its own."""
        fitted = item.fitted_shape(self._model.config.draft_vocab_size)
        own = GrowthShape(fitted.num_steps, fitted.eagle_topk, fitted.num_draft_tokens)
        for shape in self._shapes:
            is_large = shape.num_steps >= own.num_steps and shape.topk >= own.topk and shape.num_nodes >= own.num_nodes
            if is_large and shape.num_scratch <= room:
                return _Fit(own, shape)
        _log.info("trees of %s grow without a captured graph; to have one, add them to --cuda-graph-shapes", own)
        return _Fit(own, own)

    @contextlib.contextmanager
    def _on_device(self) -> Iterator[None]:
        """Kernels launch on the thread's current device."""
        device = self._model.device
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            yield


@dataclass(frozen=True, slots=True)
class _Fit:
    """A tree's shape, and the one that it is laid out in."""

    shape: GrowthShape
    laid_out: GrowthShape


class _Begun:
    """PendingTrees on their way to the host. order: the place of each tree that comes, among the items that asked."""

    def __init__(self, items: Sequence[ExtendItem], order: Sequence[int], copy: _NodesCopy) -> None:
        self._items = items
        self._order = order
        self._copy = copy

    def trees(self) -> list[DraftTree | None]:
        trees: list[DraftTree | None] = [None] * len(self._items)
        asked = [i for i, item in enumerate(self._items) if item.propose is not None]
        for place, tree in zip(self._order, self._copy.trees(), strict=True):
            trees[asked[place]] = tree
        return trees


class _Nothing:
    """PendingTrees of no items."""

    def trees(self) -> list[DraftTree | None]:
        return []


class _NodesCopy:
    """The finished trees of one round on their way to the host: ``add`` those of each growth, ``send``, ``trees``."""

    def __init__(self, max_sessions: int, device: torch.device) -> None:
        is_cuda = device.type == "cuda"
        self._host = torch.empty(max_sessions * (1 + 2 * MAX_NODES), dtype=torch.int32, pin_memory=is_cuda)
        self._arrived = torch.cuda.Event() if is_cuda else None
        self._parts: list[tuple[int, int]] = []  # rows and columns of each growth
        self._used = 0

    def add(self, nodes: Tensor) -> None:
        """nodes: [sessions, 1 + 2 n] int32."""
        count = nodes.numel()
        self._host[self._used : self._used + count].view(nodes.shape).copy_(nodes, non_blocking=True)
        self._used += count
        self._parts.append((nodes.shape[0], nodes.shape[1]))

    def send(self) -> None:
        """To be called after the last growth."""
        if self._arrived is not None and self._parts:
            self._arrived.record()

    def trees(self) -> list[DraftTree]:
        """Waits for the copy. Forgets what was added."""
        if not self._parts:
            return []
        if self._arrived is not None:
            self._arrived.synchronize()
        flat = self._host[: self._used].numpy().copy()
        trees, start = [], 0
        for rows, columns in self._parts:
            table = flat[start : start + rows * columns].reshape(rows, columns)
            parents = 1 + (columns - 1) // 2
            for row, count in zip(table, table[:, 0].tolist(), strict=True):
                trees.append(DraftTree.grown(row[1 : 1 + count], row[parents : parents + count]))
            start += rows * columns
        self._parts, self._used = [], 0
        return trees
