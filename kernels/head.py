"""What a draft head computes with, and the contract of a backend that computes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from torch import Tensor

if TYPE_CHECKING:
    from kernels.ops import AttentionPlan, AttentionWeights


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """An EAGLE-3 head's layer, and what turns tokens into its rows and its rows into tokens. Matrices are prepared."""

    embedding: Tensor  # [target vocabulary, H]
    cos_sin: Tensor  # [positions, head_dim] fp32
    token_norm: Tensor  # [H]
    feature_norm: Tensor  # [H]
    attention: AttentionWeights  # of 2 H to H
    post_norm: Tensor  # [H]
    gate_up: Tensor  # [2 * I, H]
    down: Tensor  # [H, I]
    norm: Tensor  # [H]
    lm_head: Tensor  # [draft vocabulary, H]
    target_ids: Tensor  # [draft vocabulary] int64: the target's id of each draft id
    eps: float
    norm_before_residual: bool  # the residual is the normed feature
    norm_output: bool  # the next forward takes the normed result

    @property
    def matrices(self) -> tuple[Tensor, ...]:
        """The prepared ones."""
        return self.attention.qkv, self.attention.output, self.gate_up, self.down, self.lm_head


@dataclass(frozen=True, slots=True)
class HeadRows:
    """The rows of one forward: where each stands, and what it attends to."""

    tokens: Tensor  # [rows] int64
    hidden: Tensor  # [rows, H]: features of the target, or the result of the forward before
    positions: Tensor  # [rows] int64
    slots: Tensor  # [rows] int64
    attention: AttentionPlan


@dataclass(frozen=True, slots=True)
class GreedyTrees:
    """Sessions with new rows, and the trees that grow from the last row of each, ranked by log-probability alone.

    Columns of asks: position of the first row, rows, where the session's pages begin in page_ids; num_steps (0: no
    tree), topk and num_nodes, the root included.
    """

    asks: np.ndarray  # [b, 6] int64
    least_scores: np.ndarray  # [b] fp32: log-probability of a path below which a node is left out
    tokens: np.ndarray  # [rows] int64
    features: Tensor  # [rows, H]
    page_ids: np.ndarray  # [pages] int32, each session's with those of its scratch nodes
    page_size: int


class Head(Protocol):
    """One head on one device."""

    def forward(self, rows: HeadRows, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        """The layer's hidden state [rows, H], after the final norm where the head has norm_output.

        MUTATES the caches at the rows' slots.
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [rows, H] from ``forward`` -> [rows, draft vocabulary] fp32."""
        ...

    def best(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """``Ops.top_k_log_probs`` of the logits, with target ids in place of draft ids."""
        ...

    def grow(self, trees: GreedyTrees, k_cache: Tensor, v_cache: Tensor) -> np.ndarray | None:
        """``forward`` of the rows, and of level after level of the trees: their nodes but the root, in order.

        [b, 2, 64] int32: tokens and parents, -1 past the last. MUTATES the caches at the rows and the scratch positions
        past them. None, and nothing is done, on a backend that has no such call.
        """
        ...
