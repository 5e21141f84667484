"""What a session asks of a drafter."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from engine.pages import HeldPages
from paceline.types import TreeShape, tree_shape


@dataclass(frozen=True, slots=True)
class ProposeParams:
    """The tree to propose, and the request's noise, which ranks the candidates. temperature 0 is greedy."""

    num_steps: int
    eagle_topk: int
    num_draft_tokens: int
    seed: int
    temperature: float
    min_path_permille: int = 0  # see TreeShape

    @classmethod
    def of(cls, shape: TreeShape, *, seed: int, temperature: float) -> ProposeParams:
        numbers = shape.num_steps, shape.eagle_topk, shape.num_draft_tokens
        return cls(*numbers, seed=seed, temperature=temperature, min_path_permille=shape.min_path_permille)

    @property
    def min_score(self) -> float:
        """Log-probability of a path below which drafts are left out."""
        return min_score(self.min_path_permille)


def min_score(min_path_permille: int) -> float:
    return math.log(min_path_permille / 1000) if min_path_permille else -math.inf


@functools.cache
def min_scores() -> np.ndarray:
    """fp64 [1000]: ``min_score`` of every permille."""
    return np.array([min_score(permille) for permille in range(1000)])


@dataclass(frozen=True, slots=True)
class ExtendItem:
    """What a target committed for one session since the last extend, at positions [base_len, base_len + rows).

    The table holds at least base_len + rows tokens. The last of ``tokens`` is the root of a proposed tree.
    """

    table: HeldPages
    base_len: int
    tokens: np.ndarray  # [rows >= 1] int32: row i carries the token of position base_len + i + 1
    features: Tensor  # [rows, H]: row i carries the feature of position base_len + i
    propose: ProposeParams | None

    @property
    def committed_len(self) -> int:
        return self.base_len + len(self.tokens)

    def fitted_shape(self, draft_vocab_size: int) -> TreeShape:
        """The asked shape, less what the table or the draft vocabulary cannot hold."""
        assert self.propose is not None
        asked = self.propose
        return fitted_shape(
            tree_shape(asked.num_steps, asked.eagle_topk, asked.num_draft_tokens, asked.min_path_permille),
            room=self.table.capacity - self.committed_len,
            draft_vocab_size=draft_vocab_size,
        )


def fitted_shape(asked: TreeShape, *, room: int, draft_vocab_size: int) -> TreeShape:
    """The asked shape, less what the draft vocabulary or so many scratch nodes' room cannot hold."""
    topk = min(asked.eagle_topk, draft_vocab_size)
    num_steps = min(asked.num_steps, 1 + room // topk)
    num_nodes = min(asked.num_draft_tokens, TreeShape.max_nodes(num_steps, topk))
    return tree_shape(num_steps, topk, num_nodes, asked.min_path_permille)
