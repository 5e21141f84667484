"""Rows that wait for the head, in order of position."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Consecutive rows of one session: a feature and the token at the position after it."""

    tokens: np.ndarray  # int32 [rows]
    features: Tensor  # [rows, feature_size], on the host

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, part: slice) -> Rows:
        return Rows(self.tokens[part], self.features[part])

    def copy(self) -> Rows:
        """The same rows without a share in the message that brought them."""
        return Rows(self.tokens.copy(), self.features.clone())


class Taken(NamedTuple):
    """What a step takes off a queue, with the tickets of the bulk messages that this completes."""

    rows: Rows
    tickets: tuple[int, ...]


class RowQueue:
    """First in, first out, across the messages that brought the rows."""

    def __init__(self) -> None:
        self._blocks: deque[tuple[Rows, int | None]] = deque()
        self.num_rows = 0

    def put(self, rows: Rows, *, ticket: int | None = None) -> None:
        """A message's rows, at least one; ticket names the answer that is due once all of them are taken."""
        self._blocks.append((rows, ticket))
        self.num_rows += len(rows)

    def take(self, num_rows: int) -> Taken:
        """The next num_rows rows, at least one and at most all that wait."""
        rows, ticket = self._blocks[0]
        if len(rows) == num_rows:
            self._blocks.popleft()
            self.num_rows -= num_rows
            return Taken(rows, () if ticket is None else (ticket,))
        parts: list[Rows] = []
        tickets: list[int] = []
        missing = num_rows
        while missing:
            rows, ticket = self._blocks.popleft()
            if len(rows) > missing:
                self._blocks.appendleft((rows[missing:], ticket))
                rows, ticket = rows[:missing], None
            parts.append(rows)
            if ticket is not None:
                tickets.append(ticket)
            missing -= len(rows)
        self.num_rows -= num_rows
        return Taken(_join(parts), tuple(tickets))

    def tickets(self) -> list[int]:
        """The answers that are still due."""
        return [ticket for _, ticket in self._blocks if ticket is not None]


def _join(parts: list[Rows]) -> Rows:
    if len(parts) == 1:
        return parts[0]
    return Rows(np.concatenate([p.tokens for p in parts]), torch.cat([p.features for p in parts]))
