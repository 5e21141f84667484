"""Beams and candidates of many growing trees at once, and the choice of their nodes. No tensors.

protocol.md, "Building the tree". Sessions with fewer steps drop out of the later levels, so they stand in
descending order of steps and the active ones are always the first. Ragged widths are padded to the widest;
a score of -inf marks padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.draft_batch import min_score
from paceline.tree import DraftTree
from paceline.types import TreeShape

_NOTHING = np.float32(-np.inf)


@dataclass(frozen=True, slots=True)
class Beam:
    """The nodes that the next head forward consumes, a row each; session r owns shape.eagle_topk rows in a run."""

    session: np.ndarray  # [rows] int64, ascending
    tokens: np.ndarray  # [rows] int32 target ids
    parent_row: np.ndarray  # [rows] int64: whose hidden state each takes; a row of the forward before
    local: np.ndarray  # [rows] int64: scratch index, (level - 1) * eagle_topk + place in the beam
    ancestors: np.ndarray  # [rows] uint64: the scratch nodes on its path, itself included
    num_sessions: int  # the active ones, [0, num_sessions)


class TreeGrowth:
    """Call ``start``, then ``next_beam`` and ``add`` in turn, then ``trees``. shapes: num_steps descending."""

    def __init__(self, shapes: Sequence[TreeShape]) -> None:
        self._num_steps = np.array([s.num_steps for s in shapes])
        self._topk = np.array([s.eagle_topk for s in shapes])
        self._num_nodes = np.array([s.num_draft_tokens for s in shapes])
        self._min_scores = np.array([[min_score(s.min_path_permille)] for s in shapes], np.float32)
        assert (np.diff(self._num_steps) <= 0).all(), "sessions must come in descending order of steps"
        self.width = int(self._topk.max())
        num_candidates = self.width + (int(self._num_steps[0]) - 1) * self.width**2
        self._scores = np.full((len(shapes), num_candidates), _NOTHING, np.float32)
        self._tokens = np.zeros((len(shapes), num_candidates), np.int32)
        self._parents = np.full((len(shapes), num_candidates), -1)  # candidate index, -1 the root
        self._level = 0
        self._filled = self.width
        self._places = np.arange(self.width)
        self._beam = np.tile(self._places, (len(shapes), 1))  # candidate index of each beam node
        self._parent_row = np.repeat(np.arange(len(shapes)), self.width).reshape(-1, self.width)
        self._masks = np.zeros((len(shapes), self.width), np.uint64)
        self._rows: Beam | None = None

    def start(self, log_probs: np.ndarray, tokens: np.ndarray) -> None:
        """The first candidates: the width best of each session, descending. [sessions, width] fp32 and int."""
        is_real = self._places < self._topk[:, None]
        self._scores[:, : self.width] = np.where(is_real, log_probs, _NOTHING)
        self._tokens[:, : self.width] = tokens

    def next_beam(self) -> Beam | None:
        """None when no session has steps left."""
        self._level += 1
        active = int((self._num_steps > self._level).sum())
        if active == 0:
            return None
        topk = self._topk[:active, None]
        session, place = np.nonzero(self._places < topk)
        local = (self._level - 1) * self._topk[session] + place
        own = np.uint64(1) << local.astype(np.uint64)
        self._masks[session, place] |= own
        self._rows = Beam(
            session=session,
            tokens=self._tokens[session, self._beam[session, place]],
            parent_row=self._parent_row[session, place],
            local=local,
            ancestors=self._masks[session, place],
            num_sessions=active,
        )
        return self._rows

    def add(self, log_probs: np.ndarray, tokens: np.ndarray) -> None:
        """The width best children of each row of the last beam, descending. [rows, width] fp32 and int."""
        assert self._rows is not None
        active, width = self._rows.num_sessions, self.width
        session = self._rows.session
        place = self._rows.local - (self._level - 1) * self._topk[session]
        path = self._scores[session, self._beam[session, place]]
        is_real = self._places < self._topk[session, None]
        scores = np.full((active, width, width), _NOTHING, np.float32)
        scores[session, place] = np.where(is_real, path[:, None] + log_probs, _NOTHING)
        children = np.zeros((active, width, width), np.int32)
        children[session, place] = tokens
        span = slice(self._filled, self._filled + width * width)
        self._scores[:active, span] = scores.reshape(active, -1)
        self._tokens[:active, span] = children.reshape(active, -1)
        self._parents[:active, span] = np.repeat(self._beam[:active], width, axis=1)

        best = np.argsort(-scores.reshape(active, -1), axis=1, kind="stable")[:, :width]
        parent_place = best // width
        row_of = np.zeros((active, width), np.int64)
        row_of[session, place] = np.arange(len(session))
        self._beam[:active] = self._filled + best
        self._parent_row[:active] = np.take_along_axis(row_of, parent_place, axis=1)
        self._masks[:active] = np.take_along_axis(self._masks[:active], parent_place, axis=1)
        self._filled += width * width

    def trees(self, roots: Sequence[int]) -> list[DraftTree]:
        """Of all candidates the num_draft_tokens - 1 best by (score descending, depth ascending, index).

        Nodes come in order of depth, siblings by falling score. Fewer where there are fewer candidates, or where
        paths fall below min_path_permille.
        """
        num_sessions, num_candidates = self._scores.shape
        is_fit = np.isfinite(self._scores) & (self._scores >= self._min_scores)
        num_chosen = np.minimum(self._num_nodes - 1, is_fit.sum(1))
        most = int(num_chosen.max())
        order = np.argsort(-self._scores, axis=1, kind="stable")[:, :most]
        chosen = np.sort(np.where(np.arange(most) < num_chosen[:, None], order, num_candidates), axis=1)
        local = np.zeros((num_sessions, num_candidates + 2), np.int32)  # the last entry is the root's: parent -1
        np.put_along_axis(local, chosen, np.arange(1, most + 1, dtype=np.int32)[None], axis=1)
        local[:, -1] = 0
        found = np.minimum(chosen, num_candidates - 1)
        parents = np.take_along_axis(local, np.take_along_axis(self._parents, found, axis=1), axis=1)
        tokens = np.take_along_axis(self._tokens, found, axis=1)
        nodes = np.empty((2, num_sessions, 1 + most), np.int32)
        nodes[0, :, 0], nodes[1, :, 0] = roots, -1
        nodes[0, :, 1:], nodes[1, :, 1:] = tokens, parents
        counts = (1 + num_chosen).tolist()
        return [DraftTree.grown(nodes[0, i, :count], nodes[1, i, :count]) for i, count in enumerate(counts)]
