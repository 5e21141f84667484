"""RoundColumns: a round's message as the engine takes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from paceline.rounds import ExtendColumns, RawTensor


@dataclass(frozen=True, slots=True, eq=False)
class RoundColumns:
    """Columns [b]; rows are flat, in the order of the sessions. It was checked at the edge."""

    session: np.ndarray  # uint64
    round: np.ndarray  # int64
    base_len: np.ndarray  # int64
    num_rows: np.ndarray  # int64
    shapes: np.ndarray  # int64 [4, b]: num_steps, eagle_topk, num_draft_tokens, min_path_permille; 0: no tree
    tokens: np.ndarray  # int32 [rows]
    features: RawTensor  # [rows, feature_size]

    @classmethod
    def of(cls, columns: ExtendColumns) -> Self:
        """Of what travels."""
        shapes = (columns.num_steps, columns.eagle_topk, columns.num_draft_tokens, columns.min_path_permille)
        return cls(
            session=columns.session,
            round=columns.round,
            base_len=columns.base_committed_len,
            num_rows=columns.num_tokens,
            shapes=np.array(shapes) * columns.propose,
            tokens=columns.verified_id,
            features=columns.hidden_states,
        )
