"""StepNews: what the routers are to learn of a step, put into their batches when there is time for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.types import TreeShape
from target_service.request_desk import RequestDesk
from target_service.round_columns import RoundColumns
from target_service.token_columns import TokenColumns


@dataclass(frozen=True, slots=True, eq=False)
class AskedTrees:
    """The trees of a step that a draft was asked for: those that came, then those that were late."""

    numbers: Sequence[int]  # [m], among the step's requests
    shapes: Sequence[TreeShape]  # [m], as asked for
    num_nodes: np.ndarray  # int [those that came], the root included
    accept_length: np.ndarray  # int [those that came]


@dataclass(frozen=True, slots=True, eq=False)
class StepNews:
    """Values of their own: the requests may be gone when they are told."""

    streams: np.ndarray  # int64 [b], of each request of the step
    deltas: TokenColumns  # of the same requests
    asked: AskedTrees | None

    @property
    def num_tokens(self) -> int:
        return len(self.deltas.tokens)

    def tell(self, requests: RequestDesk) -> None:
        """Adds tokens and rounds to the batches of the streams that are still open."""
        if not len(self.streams):
            return
        rounds = None if self.asked is None else self._rounds(self.asked)
        first = int(self.streams[0])
        if (self.streams == first).all():
            _add(requests, first, self.deltas, rounds)
            return
        asked = np.array([] if self.asked is None else self.asked.numbers, np.int64)
        for stream in np.unique(self.streams).tolist():
            chosen = self.streams == stream
            some = None if rounds is None else rounds.of(chosen[asked])
            _add(requests, stream, self.deltas.of(chosen), some)

    def _rounds(self, asked: AskedTrees) -> RoundColumns:
        num_late = len(asked.numbers) - len(asked.num_nodes)
        num_nodes, accept_length = asked.num_nodes, asked.accept_length
        if num_late:
            num_nodes = np.append(num_nodes, np.ones(num_late, np.int64))
            accept_length = np.append(accept_length, np.zeros(num_late, np.int64))
        return RoundColumns(self.deltas.request[asked.numbers], asked.shapes, num_nodes, accept_length)


def _add(requests: RequestDesk, stream: int, deltas: TokenColumns, rounds: RoundColumns | None) -> None:
    if not requests.is_open(stream):
        return
    batch = requests.batch(stream)
    batch.deltas.append(deltas)
    if rounds is not None and len(rounds.shapes):
        batch.rounds.append(rounds)
