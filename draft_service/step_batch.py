"""StepBatch: rows of many sessions that run together, and the trees that are wanted, a column each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from torch import Tensor

from draft_service.round_table import RoundTable
from draft_service.rows import Rows
from draft_service.session import Ask, PickedWork
from engine.extend_batch import FeaturePart, joined, rows_of, tensor_of
from kernels.round_wire import (
    ARRIVED_S,
    BASE_LEN,
    COMMITTED_LEN,
    NUM_ROWS,
    NUM_TABLE_ROWS,
    ROUND,
    SEAT,
    SESSION,
    SHAPES,
)
from paceline.rounds import ExtendColumns
from paceline.types import TreeShape, tree_shape

NO_ROUND = -1


@dataclass(frozen=True, slots=True, eq=False)
class StepBatch(RoundTable):
    """Of b sessions; rows are flat, in the order of the sessions.

    A message has no seats yet, and may name a session twice. What runs is of distinct sessions with at least one row
    each, and of some the round may be NO_ROUND: no ask is answered.
    """

    table: np.ndarray  # int64
    tokens: np.ndarray  # int32 [rows]
    features: tuple[FeaturePart, ...]  # [rows, feature_size] in parts

    @classmethod
    def of_columns(cls, columns: ExtendColumns) -> Self:
        """Of what travels."""
        table = np.zeros((NUM_TABLE_ROWS, len(columns.session)), np.int64)
        table[SESSION] = columns.session.view(np.int64)
        table[ROUND] = columns.round
        table[COMMITTED_LEN] = columns.base_committed_len + columns.num_tokens
        table[SEAT] = -1
        table[BASE_LEN] = columns.base_committed_len
        table[NUM_ROWS] = columns.num_tokens
        shapes = (columns.num_steps, columns.eagle_topk, columns.num_draft_tokens, columns.min_path_permille)
        table[SHAPES:] = np.array(shapes) * columns.propose
        return cls(table, columns.verified_id, (columns.hidden_states,))

    @classmethod
    def of_work(cls, picked: PickedWork) -> Self:
        """At least one session's."""
        sessions, works = zip(*picked, strict=True)
        asks = [session.ask if session.completes(work) else None for session, work in picked]
        table = np.empty((NUM_TABLE_ROWS, len(picked)), np.int64)
        table[SESSION] = np.array([session.key.session for session in sessions], np.uint64).view(np.int64)
        table[ROUND] = [NO_ROUND if ask is None else ask.round for ask in asks]
        table[ARRIVED_S] = np.array([0.0 if ask is None else ask.arrived_s for ask in asks]).view(np.int64)
        table[SEAT] = [session.seat for session in sessions]
        table[BASE_LEN] = [work.base_len for work in works]
        table[NUM_ROWS] = [len(work.rows) for work in works]
        table[COMMITTED_LEN] = table[BASE_LEN] + table[NUM_ROWS]
        table[SHAPES:] = columns_of([work.shape for work in works])
        return cls(
            table,
            tokens=np.concatenate([work.rows.tokens for work in works]),
            features=tuple(work.rows.features for work in works),
        )

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """The sessions of all parts, in order. At least one part."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.table for part in parts], axis=1),
            tokens=np.concatenate([part.tokens for part in parts]),
            features=tuple(tensor for part in parts for tensor in part.features),
        )

    @property
    def size(self) -> int:
        """Sessions."""
        return self.table.shape[1]

    @property
    def arrived_s(self) -> np.ndarray:
        """fp64."""
        return self.table[ARRIVED_S].view(np.float64)

    @property
    def seat(self) -> np.ndarray:
        """int64: the session's in SessionColumns."""
        return self.table[SEAT]

    @property
    def base_len(self) -> np.ndarray:
        """int64."""
        return self.table[BASE_LEN]

    @property
    def num_rows(self) -> np.ndarray:
        """int64."""
        return self.table[NUM_ROWS]

    @property
    def shapes(self) -> np.ndarray:
        """int64 [4, b]: num_steps, eagle_topk, num_draft_tokens, min_path_permille; 0: no tree."""
        return self.table[SHAPES:]

    def take(self, places: np.ndarray) -> StepBatch:
        """Some of the sessions. places: int64, ascending, at least one."""
        stops = self.num_rows.cumsum()
        starts, stops = (stops - self.num_rows)[places].tolist(), stops[places].tolist()
        return StepBatch(
            self.table.take(places, axis=1),
            tokens=np.concatenate([self.tokens[start:stop] for start, stop in zip(starts, stops, strict=True)]),
            features=rows_of(self.features, starts, stops),
        )

    def ask(self, place: int) -> Ask:
        """One session's part."""
        stop = int(self.num_rows[: place + 1].sum())
        start = stop - int(self.num_rows[place])
        numbers = self.shapes[:, place].tolist()
        return Ask.of(
            int(self.round[place]),
            int(self.base_len[place]),
            Rows(self.tokens[start:stop], joined(self.features)[start:stop]),
            shape=tree_shape(*numbers) if numbers[0] else None,
            arrived_s=float(self.arrived_s[place]),
        )

    def last_row(self, place: int) -> Rows:
        """Of one session."""
        stop = int(self.num_rows[: place + 1].sum())
        return Rows(self.tokens[stop - 1 : stop], _row(self.features, stop - 1))


def columns_of(shapes: Sequence[TreeShape | None]) -> np.ndarray:
    """``shapes`` of a batch."""
    return np.array(
        [
            [0 if shape is None else getattr(shape, name) for shape in shapes]
            for name in ("num_steps", "eagle_topk", "num_draft_tokens", "min_path_permille")
        ],
        np.int64,
    )


def _row(parts: Sequence[FeaturePart], place: int) -> Tensor:
    """[1, feature_size]: one row of all parts together, which are not joined for it: they may be megabytes."""
    for part in parts:
        num_rows = part.shape[0]
        if place < num_rows:
            return tensor_of(part)[place : place + 1]
        place -= num_rows
    raise AssertionError("there are not so many rows")
