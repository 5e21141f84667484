"""StepBatch: rows of many sessions that run together, and the trees that are wanted, a column each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from torch import Tensor

from draft_service.rows import Rows
from draft_service.session import Ask, PickedWork
from engine.extend_batch import FeaturePart, joined, rows_of, tensor_of
from paceline.types import TreeShape, tree_shape

NO_ROUND = -1


@dataclass(frozen=True, slots=True, eq=False)
class StepBatch:
    """Columns [b], of distinct sessions; rows are flat, in the order of the sessions, at least one a session."""

    seat: np.ndarray  # int64: the session's in SessionColumns
    session: np.ndarray  # uint64: its number
    round: np.ndarray  # int64: of the ask that is answered once the rows are in; NO_ROUND: none is
    base_len: np.ndarray  # int64
    num_rows: np.ndarray  # int64
    shapes: np.ndarray  # int64 [4, b]: num_steps, eagle_topk, num_draft_tokens, min_path_permille; 0: no tree
    arrived_s: np.ndarray  # fp64
    tokens: np.ndarray  # int32 [rows]
    features: tuple[FeaturePart, ...]  # [rows, feature_size] in parts

    @classmethod
    def of_work(cls, picked: PickedWork) -> Self:
        """At least one session's."""
        sessions, works = zip(*picked, strict=True)
        asks = [session.ask if session.completes(work) else None for session, work in picked]
        return cls(
            seat=np.array([session.seat for session in sessions]),
            session=np.array([session.key.session for session in sessions], np.uint64),
            round=np.array([NO_ROUND if ask is None else ask.round for ask in asks]),
            base_len=np.array([work.base_len for work in works]),
            num_rows=np.array([len(work.rows) for work in works]),
            shapes=columns_of([work.shape for work in works]),
            arrived_s=np.array([0.0 if ask is None else ask.arrived_s for ask in asks]),
            tokens=np.concatenate([work.rows.tokens for work in works]),
            features=tuple(work.rows.features for work in works),
        )

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """The sessions of all parts, in order. At least one part."""
        if len(parts) == 1:
            return parts[0]
        names = ("seat", "session", "round", "base_len", "num_rows", "shapes", "arrived_s", "tokens")
        columns = {name: np.concatenate([getattr(part, name) for part in parts], axis=-1) for name in names}
        return cls(**columns, features=tuple(tensor for part in parts for tensor in part.features))

    @property
    def size(self) -> int:
        """Sessions."""
        return len(self.seat)

    @property
    def committed_len(self) -> np.ndarray:
        """int64 [b]: once the rows are in."""
        return self.base_len + self.num_rows

    def take(self, places: np.ndarray) -> StepBatch:
        """Some of the sessions. places: int64, ascending, at least one."""
        stops = self.num_rows.cumsum()
        starts, stops = (stops - self.num_rows)[places].tolist(), stops[places].tolist()
        return StepBatch(
            seat=self.seat[places],
            session=self.session[places],
            round=self.round[places],
            base_len=self.base_len[places],
            num_rows=self.num_rows[places],
            shapes=self.shapes.take(places, axis=1),
            arrived_s=self.arrived_s[places],
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
