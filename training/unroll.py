"""Unroll: training-time test. All chains of a batch through a head, several depths deep, with the loss of each.

The input of depth k is the head's own hidden state of depth k - 1 (Li et al., "EAGLE-3", arXiv 2503.01840). Which rows
a chain sees, and at which positions, is derived in training.diagonal_attention. Column s at depth k consumes token
s + k + 1 at RoPE position s + k, and its logits are taught by the target's own at position s + k + 1: they guess token
s + k + 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from training.head_network import ChainKv, DepthOutput, HeadNetwork
from training.loss_rows import LossRows
from training.soft_loss import soft_loss
from training.teacher import Lesson


@dataclass(frozen=True, slots=True)
class UnrollRules:
    """How deep, and how much each depth counts."""

    depths: int
    depth_decay: float


@dataclass(frozen=True, slots=True)
class Unrolled:
    """Of one batch."""

    loss: Tensor  # scalar fp32
    sums: Tensor  # [4, depths] fp32, see DepthFigures; without a gradient


class Unroll:
    """Holds what does not change from batch to batch, on the device."""

    def __init__(
        self, embedding: Tensor, cos_sin: Tensor, draft_ids: Tensor, *, rules: UnrollRules, rows: LossRows
    ) -> None:
        """embedding: [V, H] of the target; cos_sin: [positions, head_dim] fp32; draft_ids: [V] int64, -1 for none."""
        self._embedding, self._cos_sin, self._draft_ids = embedding, cos_sin, draft_ids
        self._rules, self._rows = rules, rows

    def run(self, network: HeadNetwork, lesson: Lesson) -> Unrolled:
        """The loss is the mean over weighted tokens, summed over depths; differentiable by the network's parameters."""
        length = lesson.tokens.shape[1]
        next_draft = self._draft_ids[lesson.tokens]
        total = lesson.weights[:, 2:].sum().clamp(min=1)
        hidden, past = network.fuse(lesson.aux), None
        is_kept = torch.ones_like(lesson.tokens, dtype=torch.bool)
        losses, sums = [], []
        for depth in range(self._rules.depths):
            hidden, past = self._forward(network, lesson, hidden, depth=depth, past=past)
            weights = _shifted(lesson.weights, depth + 2)
            # The last rows' lessons would lie past the end.
            num_rows = max(0, lesson.tokens.numel() - depth - 1)
            loss, best = soft_loss(
                network.norm(hidden).flatten(0, 1)[:num_rows],
                network.lm_head.weight,
                lesson.probs.flatten(0, 1)[depth + 1 :],
                (weights * _shifted(lesson.mass, depth + 1)).flatten()[:num_rows] / total,
                rows=self._rows,
            )
            losses.append(loss * self._rules.depth_decay**depth)
            guess = functional.pad(best, (0, lesson.tokens.numel() - num_rows), value=-2).view(-1, length)
            is_kept = is_kept & (guess == _shifted(next_draft, depth + 2))
            is_right = guess == _shifted(lesson.best, depth + 1)
            sums.append(
                torch.stack(
                    [loss.detach() * total, weights.sum(), (weights * is_right).sum(), (weights * is_kept).sum()]
                )
            )
        return Unrolled(torch.stack(losses).sum(), torch.stack(sums, dim=1))

    def _forward(
        self, network: HeadNetwork, lesson: Lesson, hidden: Tensor, *, depth: int, past: ChainKv | None
    ) -> DepthOutput:
        length = lesson.tokens.shape[1]
        embedded = functional.embedding(_shifted(lesson.tokens, depth + 1), self._embedding)
        output: DepthOutput = network(embedded, hidden, self._cos_sin[depth : depth + length], past)
        return output


@dataclass(frozen=True, slots=True)
class DepthFigures:
    """By depth, as means over the weighted tokens that a chain's depth guesses."""

    loss: tuple[float, ...]  # cross-entropy to the target's distribution, within the draft vocabulary
    accuracy: tuple[float, ...]  # the head's likeliest token is the target's, after the data's own tokens
    accepted: tuple[float, ...]  # the head's likeliest tokens are the data's own, at this depth and all before

    @classmethod
    def of(cls, sums: Tensor) -> DepthFigures:
        """sums: [4, depths], of any number of batches. Waits for the device."""
        loss, weight, right, kept = sums.double().cpu()
        weight = weight.clamp(min=1)
        return cls(*(tuple((part / weight).tolist()) for part in (loss, right, kept)))

    @property
    def chain_length(self) -> float:
        """Accepted length of a chain as deep, averaged over all positions, of greedy data."""
        return 1 + sum(self.accepted)


def _shifted(x: Tensor, count: int) -> Tensor:
    """[b, t]: column s takes what stood at s + count; 0 past the end."""
    return functional.pad(x[:, count:], (0, min(count, x.shape[1])))
