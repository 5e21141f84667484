"""Groves: which sessions of a batch grow together, and within which shape."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from engine.draft_batch import fitted_shape
from engine.extend_batch import ExtendBatch
from kernels.growth import GrowthShape
from paceline.types import MAX_SCRATCH_NODES, tree_shape

_MAX_FITS = 4096  # asked shapes that are remembered
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Grove:
    """Some sessions of a batch, which grow within one shape."""

    shape: GrowthShape
    shapes: np.ndarray  # int64 [4, b] of the batch: num_steps, topk, num_nodes, min_path_permille
    places: np.ndarray  # int64, ascending


class Groves:
    """A tree is laid out in the smallest known shape that holds it and whose scratch nodes fit its session's room, or
    in its own. It has fewer levels where the room does not hold all."""

    def __init__(self, max_group: Callable[[GrowthShape], int], *, draft_vocab_size: int) -> None:
        """max_group: sessions of one grove at most."""
        self.shapes: list[GrowthShape] = []
        self._max_group = max_group
        self._draft_vocab_size = draft_vocab_size
        self._fits: dict[tuple[int, ...], _Fit] = {}

    def lay_out_in(self, shapes: Collection[GrowthShape]) -> None:
        """From now on these are the known ones."""
        self._fits.clear()
        self.shapes = sorted(shapes, key=lambda s: (s.num_steps, s.topk, s.num_nodes))

    def of(self, batch: ExtendBatch, key: tuple[int, ...] | None) -> list[Grove]:
        """All sessions ask for a tree. key: num_steps, eagle_topk, num_draft_tokens and room for scratch nodes, where
        these are the same for all."""
        if key is None:
            return self._mixed(batch)
        fit, shapes = self._fit(key), batch.shapes
        if fit.shrinks:
            shapes = shapes.copy()
            shapes[:3] = np.array(fit.shape)[:, None]
        return self._split(fit.laid_out, shapes, np.arange(len(batch)))

    def _mixed(self, batch: ExtendBatch) -> list[Grove]:
        rooms = batch.held.capacity[batch.seats] - batch.base_len - batch.num_rows
        keys = list(zip(*batch.shapes[:3].tolist(), np.minimum(rooms, MAX_SCRATCH_NODES).tolist(), strict=True))
        fits = {key: self._fit(key) for key in set(keys)}
        shapes = batch.shapes.copy()
        shapes[:3] = np.array([fits[key].shape for key in keys]).T
        groups: dict[GrowthShape, list[int]] = {}
        for place, key in enumerate(keys):
            groups.setdefault(fits[key].laid_out, []).append(place)
        return [grove for shape, places in groups.items() for grove in self._split(shape, shapes, np.array(places))]

    def _split(self, shape: GrowthShape, shapes: np.ndarray, places: np.ndarray) -> list[Grove]:
        most = self._max_group(shape)
        return [Grove(shape, shapes, places[start : start + most]) for start in range(0, len(places), most)]

    def _fit(self, key: tuple[int, ...]) -> _Fit:
        fit = self._fits.get(key)
        if fit is None:
            fit = self._new_fit(key)
            if len(self._fits) < _MAX_FITS:
                self._fits[key] = fit
        return fit

    def _new_fit(self, key: tuple[int, ...]) -> _Fit:
        room = key[3]
        fitted = fitted_shape(tree_shape(*key[:3]), room=room, draft_vocab_size=self._draft_vocab_size)
        own = GrowthShape(fitted.num_steps, fitted.eagle_topk, fitted.num_draft_tokens)
        numbers = own.num_steps, own.topk, own.num_nodes
        for shape in self.shapes:
            is_large = shape.num_steps >= own.num_steps and shape.topk >= own.topk and shape.num_nodes >= own.num_nodes
            if is_large and shape.num_scratch <= room:
                return _Fit(numbers, shape, numbers != key[:3])
        _log.info("trees of %s grow without a captured graph; to have one, add them to --cuda-graph-shapes", own)
        return _Fit(numbers, own, numbers != key[:3])


@dataclass(frozen=True, slots=True)
class _Fit:
    """A tree's shape (num_steps, topk, num_nodes), the one that it is laid out in, and whether less was asked for."""

    shape: tuple[int, int, int]
    laid_out: GrowthShape
    shrinks: bool
