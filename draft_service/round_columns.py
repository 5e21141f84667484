"""RoundColumns: a round's message as the engine takes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from kernels.round_wire import BASE_LEN, COMMITTED_LEN, NUM_ROWS, NUM_TABLE_ROWS, ROUND, SEAT, SESSION, SHAPES
from paceline.rounds import ExtendColumns, RawTensor


@dataclass(frozen=True, slots=True, eq=False)
class RoundColumns:
    """At least one session's. It was checked at the edge."""

    table: np.ndarray  # int64, as kernels.round_wire says; seats and ARRIVED_S are the engine's to write
    tokens: np.ndarray  # int32 [rows], in the order of the sessions
    features: RawTensor  # [rows, feature_size]

    @classmethod
    def of(cls, columns: ExtendColumns) -> Self:
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
        return cls(table, columns.verified_id, columns.hidden_states)
