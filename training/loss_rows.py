"""LossRows: the passes over rows of logits, by torch on any device or by one kernel each on a GPU.

By torch, loss and gradient of 16k rows x 16k tokens read and write memory some fifteen times, which would take half of
a training step on a GPU; the kernels do so three times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from kernels.ops import Ops
from training.draft_vocabulary import DraftVocabulary


@dataclass(frozen=True, slots=True)
class TargetTables:
    """On the device."""

    target_ids: Tensor  # [draft vocabulary] int64: the target's id of each draft id
    draft_ids: Tensor  # [V] int64: the draft id of each of the target's, -1 for none

    @classmethod
    def of(cls, vocabulary: DraftVocabulary, device: torch.device) -> TargetTables:
        return cls(vocabulary.target_ids.to(device), vocabulary.draft_ids.to(device))


class SoftTargets(NamedTuple):
    """What a target says, a row a token. Rows that nobody wrote are 0, and best -1."""

    probs: Tensor  # [n, draft vocabulary] fp32: the next token's distribution within the draft vocabulary, sum 1
    mass: Tensor  # [n] fp32: the share of the whole distribution that lies within it
    best: Tensor  # [n] int64: the draft id of the target's likeliest next token, -1 where it has none

    @classmethod
    def empty(cls, num_rows: int, draft_vocab_size: int, device: torch.device) -> SoftTargets:
        return cls(
            torch.zeros(num_rows, draft_vocab_size, device=device),
            torch.zeros(num_rows, device=device),
            torch.full((num_rows,), -1, device=device),
        )


class LossOfRows(NamedTuple):
    """Of each row."""

    losses: Tensor  # [n] fp32
    best: Tensor  # [n] int64: the likeliest column


class LossRows(Protocol):
    """How the rows are gone through."""

    def write_targets(
        self, logits: Tensor, places: Tensor, tables: TargetTables, targets: SoftTargets, *, temperature: float
    ) -> None:
        """MUTATES targets at places [n] int64. logits: [n, V] fp32 of the target; temperature: of probs alone."""
        ...

    def loss(self, logits: Tensor, probs: Tensor, weights: Tensor, *, wants_grad: bool) -> LossOfRows:
        """Cross-entropy of each row of logits [n, draft vocabulary] to probs, times weights [n] fp32.

        MUTATES logits with wants_grad: they become the gradient of the losses' sum.
        """
        ...


class TorchRows:
    """LossRows on any device."""

    def write_targets(
        self, logits: Tensor, places: Tensor, tables: TargetTables, targets: SoftTargets, *, temperature: float
    ) -> None:
        chosen = logits[:, tables.target_ids]
        targets.probs.index_copy_(0, places, torch.softmax(chosen / temperature, dim=-1))
        targets.mass.index_copy_(0, places, (chosen.logsumexp(-1) - logits.logsumexp(-1)).exp())
        targets.best.index_copy_(0, places, tables.draft_ids[logits.argmax(-1)])

    def loss(self, logits: Tensor, probs: Tensor, weights: Tensor, *, wants_grad: bool) -> LossOfRows:
        best = logits.argmax(-1)
        log_q = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
        losses = -torch.linalg.vecdot(probs, log_q) * weights
        if wants_grad:
            logits.copy_(log_q.exp_().sub_(probs).mul_(weights[:, None]))
        return LossOfRows(losses, best)


class TritonRows:
    """LossRows on a GPU."""

    def write_targets(
        self, logits: Tensor, places: Tensor, tables: TargetTables, targets: SoftTargets, *, temperature: float
    ) -> None:
        from kernels.triton_ops.loss_rows import soft_targets

        results = (targets.probs, targets.mass, targets.best)
        soft_targets(logits, places, (tables.target_ids, tables.draft_ids), results, scale=1 / temperature)

    def loss(self, logits: Tensor, probs: Tensor, weights: Tensor, *, wants_grad: bool) -> LossOfRows:
        from kernels.triton_ops.loss_rows import loss_and_grad

        return LossOfRows(*loss_and_grad(logits, probs, weights, wants_grad=wants_grad))


def rows_of(ops: Ops) -> LossRows:
    """By Triton where the target's kernels are; --kernel-backend reference is torch alone."""
    return TritonRows() if ops.name in ("triton", "flashinfer") else TorchRows()
