"""The optimizer and its learning rate."""

from __future__ import annotations

import math

import torch
from torch import nn

from training.config import TrainConfig

_BETAS = (0.9, 0.95)


def make_optimizer(network: nn.Module, train: TrainConfig, device: torch.device) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter, ICLR 2019) over fp32 weights; norms do not decay."""
    matrices = [weight for weight in network.parameters() if weight.dim() > 1]
    norms = [weight for weight in network.parameters() if weight.dim() == 1]
    groups = [{"params": matrices, "weight_decay": train.weight_decay}, {"params": norms, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=train.learning_rate, betas=_BETAS, fused=device.type == "cuda")


def learning_rate(step: int, num_steps: int, train: TrainConfig) -> float:
    """Of optimizer step ``step`` from 0: a linear rise, then a half cosine down to final_rate of the peak."""
    rise = max(1, round(train.warmup * num_steps))
    if step < rise:
        return train.learning_rate * (step + 1) / rise
    done = (step - rise) / max(1, num_steps - rise)
    share = train.final_rate + (1 - train.final_rate) * (1 + math.cos(math.pi * done)) / 2
    return train.learning_rate * share
