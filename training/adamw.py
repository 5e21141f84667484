"""AdamW over fp32 weights (Loshchilov and Hutter, ICLR 2019), all weights in a few kernels.

torch.optim has it, too; importing that takes seconds, as it loads torch's compiler, which nothing here uses.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

_BETA_1, _BETA_2, _EPS = 0.9, 0.95, 1e-8


class AdamW:
    """Matrices decay, vectors do not."""

    def __init__(self, weights: Iterable[nn.Parameter], *, weight_decay: float) -> None:
        self._weights: list[Tensor] = list(weights)
        self._decay = weight_decay
        self._means = [torch.zeros_like(weight) for weight in self._weights]
        self._squares = [torch.zeros_like(weight) for weight in self._weights]
        self._step = 0

    @torch.no_grad()
    def step(self, learning_rate: float, *, max_norm: float) -> Tensor:
        """MUTATES the weights, and drops their gradients, which are first scaled down to max_norm together.

        Returns the norm before that, a scalar on the device.
        """
        grads = [weight.grad for weight in self._weights if weight.grad is not None]
        assert len(grads) == len(self._weights), "a weight has no gradient"
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        torch._foreach_mul_(grads, (max_norm / (norm + 1e-6)).clamp(max=1))
        self._step += 1
        torch._foreach_lerp_(self._means, grads, 1 - _BETA_1)
        torch._foreach_mul_(self._squares, _BETA_2)
        torch._foreach_addcmul_(self._squares, grads, grads, 1 - _BETA_2)
        scales = torch._foreach_sqrt(self._squares)
        torch._foreach_div_(scales, math.sqrt(1 - _BETA_2**self._step))
        torch._foreach_add_(scales, _EPS)
        matrices = [weight for weight in self._weights if weight.dim() > 1]
        torch._foreach_mul_(matrices, 1 - learning_rate * self._decay)
        torch._foreach_addcdiv_(self._weights, self._means, scales, -learning_rate / (1 - _BETA_1**self._step))
        for weight in self._weights:
            weight.grad = None
        return norm

    def state(self) -> dict[str, list[Tensor]]:
        """On the CPU, for ``restore``."""
        return {
            "step": [torch.tensor(self._step)],
            "means": [mean.cpu() for mean in self._means],
            "squares": [square.cpu() for square in self._squares],
        }

    def restore(self, state: dict[str, list[Tensor]]) -> None:
        self._step = int(state["step"][0])
        _copy(state["means"], self._means)
        _copy(state["squares"], self._squares)


def learning_rate(step: int, num_steps: int, *, peak: float, warmup: float, final: float) -> float:
    """Of optimizer step ``step`` from 0: a linear rise over warmup of the steps, then a half cosine down to final of
    the peak."""
    rise = max(1, round(warmup * num_steps))
    if step < rise:
        return peak * (step + 1) / rise
    done = (step - rise) / max(1, num_steps - rise)
    return peak * (final + (1 - final) * (1 + math.cos(math.pi * done)) / 2)


def _copy(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)
