"""What a round's sessions bring and ask for, judged all at once by calls of C."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from kernels.extension import EXTENSION
from kernels.round_tables import SessionRows
from kernels.round_wire import ARRIVED_S, SEAT, SESSION


class RoundLimits(NamedTuple):
    """What a round may ask of each session to be taken in whole."""

    max_rows: int
    most_len: int  # at which its tree ends


class Survey(NamedTuple):
    """key: num_steps, topk, num_nodes and the room for scratch tokens, at most most_room, where all sessions ask for a
    tree and agree on these."""

    num_asking: int
    key: tuple[int, int, int, int] | None


def take_round(
    facts: np.ndarray, seats: Mapping[int, int], table: np.ndarray, *, arrived_s: float, limits: RoundLimits
) -> bool:
    """MUTATES a round's table: its sessions' seats, and when it arrived.

    Returns whether each session has a seat, is idle (state 0), named once, and brings its next rows, at most max_rows
    and within its max_len, for a newer round and a tree within most_len. Then, and only then, MUTATES facts: they have
    arrived, and the sessions wait (state 1). facts: int64 [4, seats]: arrived_len, newest_round, max_len, state.

    False without the C extension."""
    if EXTENSION is None:
        table[SEAT] = [seats.get(number, -1) for number in table[SESSION].view(np.uint64).tolist()]
        table[ARRIVED_S] = np.float64(arrived_s).view(np.int64)
        return False
    taken: bool = EXTENSION.take_round(facts, seats, table, arrived_s, *limits)
    return taken


def survey(shapes: np.ndarray, capacity: np.ndarray, rows: SessionRows, most_room: int) -> Survey:
    """shapes: int64 [4, b], of which a first number of 0 asks for no tree; capacity: int64 [seats], in tokens."""
    return Survey(*EXTENSION.survey(shapes, rows.seats, capacity, rows.base_len, rows.num_rows, most_room))
