"""The chunked loss against torch's cross-entropy with soft targets."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import training.soft_loss
from training.soft_loss import soft_loss

N, HIDDEN, VOCAB = 11, 6, 9


def test_loss_gradients_and_best_ids_are_torchs_whatever_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training.soft_loss, "_CHUNK_VALUES", 4 * VOCAB)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(N, HIDDEN, generator=generator).requires_grad_()
    weight = torch.randn(VOCAB, HIDDEN, generator=generator).requires_grad_()
    probs = torch.randn(N, VOCAB, generator=generator).softmax(-1)
    row_weights = torch.rand(N, generator=generator)
    row_weights[3] = 0

    loss, best = soft_loss(hidden, weight, probs, row_weights)
    got = torch.autograd.grad(2 * loss, [hidden, weight])
    logits = hidden @ weight.T
    wanted_loss = (functional.cross_entropy(logits, probs, reduction="none") * row_weights).sum()
    wanted = torch.autograd.grad(2 * wanted_loss, [hidden, weight])

    torch.testing.assert_close(loss, wanted_loss)
    torch.testing.assert_close(got, wanted)
    assert best.tolist() == logits.argmax(-1).tolist()


def test_without_gradients_it_only_measures() -> None:
    with torch.no_grad():
        loss, _ = soft_loss(
            torch.ones(2, HIDDEN), torch.ones(VOCAB, HIDDEN), torch.full((2, VOCAB), 1 / VOCAB), torch.ones(2)
        )
    torch.testing.assert_close(loss, 2 * torch.tensor(float(VOCAB)).log())
