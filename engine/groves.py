"""Groves: which sessions of a batch grow together, and within which shape."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from engine.draft_batch import fitted_shape
from engine.extend_batch import ExtendBatch
from engine.growth_layouts import GrowthLayouts, LaidOut
from kernels.growth import GrowthShape
from paceline.types import MAX_SCRATCH_NODES, tree_shape

_MAX_FITS = 4096  # asked shapes that are remembered
_log = logging.getLogger(__name__)


class Grove(NamedTuple):
    """Some sessions of a batch, which grow within one shape."""

    laid_out: LaidOut
    places: np.ndarray  # int64, ascending


class Plan(NamedTuple):
    """How the trees of a batch are grown."""

    groves: list[Grove]
    shapes: np.ndarray  # int64 [4, b]: num_steps, topk, num_nodes, min_path_permille of each


class Groves:
    """A tree is laid out in the smallest known shape that holds it and whose scratch nodes fit its session's room, or
    in its own. It has fewer levels where the room does not hold all."""

    def __init__(self, layouts: GrowthLayouts, *, draft_vocab_size: int) -> None:
        self.shapes: list[GrowthShape] = []
        self._layouts = layouts
        self._draft_vocab_size = draft_vocab_size
        self._fits: dict[tuple[int, ...], _Fit] = {}

    def lay_out_in(self, shapes: Collection[GrowthShape]) -> None:
        """From now on these are the known ones."""
        self._fits.clear()
        self.shapes = sorted(shapes, key=lambda s: (s.num_steps, s.topk, s.num_nodes))

    def of(self, batch: ExtendBatch, key: tuple[int, ...] | None) -> Plan:
        """All sessions ask for a tree. key: num_steps, eagle_topk, num_draft_tokens and room for scratch nodes, where
        these are the same for all."""
        if key is None:
            return self._mixed(batch)
        fit, shapes = self._fit(key), batch.shapes
        if fit.shrinks:
            shapes = shapes.copy()
            shapes[:3] = np.array(fit.shape)[:, None]
        count = len(batch)
        groves = fit.groves.get(count)
        if groves is None:
            groves = fit.groves[count] = self._split(fit.laid_out, np.arange(count))
        return Plan(groves, shapes)

    def _mixed(self, batch: ExtendBatch) -> Plan:
        rows = batch.rows
        rooms = batch.held.capacity[rows.seats] - rows.base_len - rows.num_rows
        keys = list(zip(*batch.shapes[:3].tolist(), np.minimum(rooms, MAX_SCRATCH_NODES).tolist(), strict=True))
        fits = {key: self._fit(key) for key in set(keys)}
        shapes = batch.shapes.copy()
        shapes[:3] = np.array([fits[key].shape for key in keys]).T
        groups: dict[GrowthShape, list[int]] = {}
        for place, key in enumerate(keys):
            groups.setdefault(fits[key].laid_out, []).append(place)
        groves = [grove for shape, places in groups.items() for grove in self._split(shape, np.array(places))]
        return Plan(groves, shapes)

    def _split(self, shape: GrowthShape, places: np.ndarray) -> list[Grove]:
        most = self._layouts.max_group(shape)
        parts = [places[start : start + most] for start in range(0, len(places), most)]
        return [Grove(self._layouts.of(shape, len(part)), part) for part in parts]

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
    groves: dict[int, list[Grove]] = field(default_factory=dict)  # of batches of so many sessions that all ask for it
