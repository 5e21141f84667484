"""Rotary tables: cos and sin of every position, computed once and gathered once a step."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.rope_config import RopeConfig
from paceline.tree import MAX_NODES


def cos_sin_table(rope: RopeConfig, *, head_dim: int, max_position: int, device: torch.device) -> Tensor:
    """fp32 [max_position + MAX_NODES, head_dim]: cos of the head_dim / 2 angles, then sin.

    The extra rows let a tree reach past the last committed position. The arithmetic is fp32 throughout, as
    in transformers, so that long positions round alike.
    """
    positions = torch.arange(max_position + MAX_NODES, dtype=torch.float32)
    angles = positions[:, None] * frequencies(rope, head_dim)[None, :]
    return torch.cat([angles.cos(), angles.sin()], dim=-1).to(device)


def frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """fp32 [head_dim / 2], radians a position, after the scaling."""
    plain = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if rope.scaling == "linear":
        return plain / rope.factor
    if rope.scaling == "llama3":
        return _llama3(plain, rope)
    if rope.scaling == "divisors":
        return plain / torch.tensor(rope.divisors, dtype=torch.float32)
    assert rope.scaling == "default", rope.scaling
    return plain


def _llama3(plain: Tensor, rope: RopeConfig) -> Tensor:
    """Llama 3.1: long wavelengths are divided by factor, short ones kept, those between blended."""
    wavelength = 2 * math.pi / plain
    band = rope.high_freq_factor - rope.low_freq_factor
    share = (rope.original_max_position / wavelength - rope.low_freq_factor) / band
    blended = (1 - share) * plain / rope.factor + share * plain
    scaled = torch.where(wavelength > rope.original_max_position / rope.low_freq_factor, plain / rope.factor, blended)
    return torch.where(wavelength < rope.original_max_position / rope.high_freq_factor, plain, scaled)
