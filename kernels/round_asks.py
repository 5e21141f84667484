"""What a round's sessions bring and ask for, judged all at once by a call of C."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernels.extension import EXTENSION
from kernels.round_tables import SessionRows


class RoundAsks(NamedTuple):
    """What the sessions of one round bring and ask for."""

    seats: np.ndarray  # int64 [b]; -1: not open
    round: np.ndarray  # int64 [b]
    base_len: np.ndarray  # int64 [b]
    num_rows: np.ndarray  # int64 [b]
    shapes: np.ndarray  # int64 [4, b], levels first


class Survey(NamedTuple):
    """key: num_steps, topk, num_nodes and the room for scratch tokens, at most most_room, where all sessions ask for a
    tree and agree on these."""

    num_asking: int
    key: tuple[int, int, int, int] | None


def take_round(facts: np.ndarray, asks: RoundAsks, *, max_rows: int, most_len: int) -> bool:
    """Whether each session is idle (state 0), named once, and brings its next rows, at most max_rows and within its
    max_len, for a newer round and a tree that ends at most_len at most. Then, and only then, MUTATES facts: they have
    arrived, and the sessions wait (state 1). facts: int64 [4, seats]: arrived_len, newest_round, max_len, state.

    False without the C extension."""
    if EXTENSION is None:
        return False
    taken: bool = EXTENSION.take_round(facts, *asks, max_rows, most_len)
    return taken


def survey(shapes: np.ndarray, capacity: np.ndarray, rows: SessionRows, most_room: int) -> Survey:
    """shapes: int64 [4, b], of which a first number of 0 asks for no tree; capacity: int64 [seats], in tokens."""
    return Survey(*EXTENSION.survey(shapes, rows.seats, capacity, rows.base_len, rows.num_rows, most_room))
