"""Attention of training-time test against one plain softmax over an explicit mask, forwards and backwards."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from training.diagonal_attention import diagonal_attention

B, HEADS, T, D = 2, 3, 7, 4


def random(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).float().requires_grad_()


def plain(q: Tensor, true_kv: tuple[Tensor, Tensor], chain_kv: tuple[Tensor, Tensor]) -> Tensor:
    """All keys of all depths side by side; the query of column s sees depth 0 up to s, and column s of the others."""
    keys, values = (torch.cat([true, *chain], dim=2) for true, chain in zip(true_kv, chain_kv, strict=True))
    depth = torch.arange(keys.shape[2]) // T
    column = torch.arange(keys.shape[2]) % T
    query = torch.arange(T)[:, None]
    sees = torch.where(depth == 0, column <= query, column == query)
    scores = (q @ keys.transpose(-1, -2) / D**0.5).masked_fill(~sees, float("-inf"))
    return scores.softmax(-1) @ values


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_the_merged_softmax_and_its_gradients_are_those_of_one_softmax(depth: int) -> None:
    shapes = [(B, HEADS, T, D)] * 3 + [(depth, B, HEADS, T, D)] * 2
    inputs = [random(*shape, seed=i) for i, shape in enumerate(shapes)]
    q, k, v, chain_k, chain_v = inputs
    weights = torch.randn(B, HEADS, T, D, generator=torch.Generator().manual_seed(9))
    results = []
    for attend in (diagonal_attention, plain):
        out = attend(q, (k, v), (chain_k, chain_v))
        results.append([out, *torch.autograd.grad((out * weights).sum(), inputs, allow_unused=True)])
    for got, wanted in zip(*results, strict=True):
        if wanted is None or not wanted.numel():
            continue
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_no_key_of_another_chain_is_seen() -> None:
    q, k, v, chain_k, chain_v = (
        random(*shape, seed=i) for i, shape in enumerate([(B, HEADS, T, D)] * 3 + [(2, B, HEADS, T, D)] * 2)
    )
    out = diagonal_attention(q, (k, v), (chain_k, chain_v))
    with torch.no_grad():
        chain_k[:, :, :, 3] += 5
        chain_v[:, :, :, 3] -= 5
        k[:, :, 5] += 5
    changed = diagonal_attention(q, (k, v), (chain_k, chain_v)) != out
    assert changed.any(dim=-1)[0, 0].tolist() == [False, False, False, True, False, True, True]
