"""soft_loss: cross-entropy of a head's logits to the target's distribution, without keeping the logits.

Logits of 16k rows x 16k tokens take 0.5 GB a depth in bf16; so they are made in chunks, and a chunk's gradient is made
with it (after Hsu et al., "Liger Kernel", arXiv 2410.10989, section 3.2).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from training.loss_rows import LossRows

_CHUNK_VALUES = 2**27


class SoftLoss(NamedTuple):
    """Of some rows."""

    loss: Tensor  # scalar fp32: the sum of row_weight * -sum(probs * log_softmax(hidden @ weight.T))
    best: Tensor  # [n] int64: each row's likeliest draft id


def soft_loss(hidden: Tensor, weight: Tensor, probs: Tensor, row_weights: Tensor, *, rows: LossRows) -> SoftLoss:
    """The loss can be differentiated by hidden and weight.

    hidden: [n, H]; weight: [draft vocabulary, H] fp32; probs: [n, draft vocabulary] fp32, each row's sum 1, or its
    weight 0; row_weights: [n] fp32.
    """
    return SoftLoss(*_SoftLoss.apply(hidden, weight, probs, row_weights, rows))


class _SoftLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, probs: Tensor, row_weights: Tensor, rows: LossRows
    ) -> tuple[Tensor, Tensor]:
        rounded = weight.to(hidden.dtype)
        wants_grad = any(ctx.needs_input_grad)
        d_hidden = torch.empty_like(hidden) if wants_grad else None
        d_weight = torch.zeros_like(weight) if wants_grad else None
        loss = torch.zeros((), device=hidden.device)
        best = torch.empty(len(hidden), dtype=torch.int64, device=hidden.device)
        count = max(1, _CHUNK_VALUES // len(weight))
        for start in range(0, len(hidden), count):
            part = slice(start, start + count)
            logits = hidden[part] @ rounded.T
            losses, best[part] = rows.loss(logits, probs[part], row_weights[part], wants_grad=wants_grad)
            loss += losses.sum()
            if d_hidden is not None and d_weight is not None:
                torch.mm(logits, rounded, out=d_hidden[part])  # by now their gradient
                d_weight += logits.T @ hidden[part]
        ctx.save_for_backward(*([d_hidden, d_weight] if d_hidden is not None and d_weight is not None else []))
        ctx.mark_non_differentiable(best)
        return loss, best

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden, d_weight = ctx.saved_tensors
        return d_hidden * grads[0].to(d_hidden.dtype), d_weight * grads[0], None, None, None
