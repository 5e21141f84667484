"""The chunked loss against torch's cross-entropy with soft targets, and the kernels against the same by torch."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import training.soft_loss
from tests.support.triton_devices import DEVICES
from training.draft_vocabulary import DraftVocabulary
from training.loss_rows import SoftTargets, TargetTables, TorchRows, TritonRows
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

    loss, best = soft_loss(hidden, weight, probs, row_weights, rows=TorchRows())
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
            torch.ones(2, HIDDEN),
            torch.ones(VOCAB, HIDDEN),
            torch.full((2, VOCAB), 1 / VOCAB),
            torch.ones(2),
            rows=TorchRows(),
        )
    torch.testing.assert_close(loss, 2 * torch.tensor(float(VOCAB)).log())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("width", "wants_grad"), [(37, True), (4100, True), (37, False)])
def test_the_kernel_gives_torchs_losses_and_gradient(device: str, width: int, wants_grad: bool) -> None:
    pytest.importorskip("triton", reason="triton is not installed here")
    generator = torch.Generator().manual_seed(1)
    logits = (4 * torch.randn(5, width, generator=generator)).to(device)
    probs = (3 * torch.randn(5, width, generator=generator)).softmax(-1).to(device)
    weights = torch.tensor([1.0, 0.5, 0.0, 2.0, 1.0], device=device)
    mine, theirs = logits.clone(), logits.clone()
    got = TritonRows().loss(mine, probs, weights, wants_grad=wants_grad)
    wanted = TorchRows().loss(theirs, probs, weights, wants_grad=wants_grad)
    torch.testing.assert_close(got.losses, wanted.losses, rtol=1e-4, atol=1e-5)
    assert got.best.tolist() == wanted.best.tolist()
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
    assert torch.equal(mine, logits) != wants_grad


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("vocab", "size"), [(61, 23), (4200, 4100)])
def test_the_kernel_gives_torchs_soft_targets_at_their_places(device: str, vocab: int, size: int) -> None:
    pytest.importorskip("triton", reason="triton is not installed here")
    generator = torch.Generator().manual_seed(2)
    ids = torch.randperm(vocab, generator=generator)[:size].sort().values
    tables = TargetTables.of(DraftVocabulary(ids, vocab), torch.device(device))
    logits = (5 * torch.randn(4, vocab, generator=generator)).to(device)
    logits[0, 1] = 90.0
    places = torch.tensor([5, 0, 2, 3], device=device)
    got, wanted = (SoftTargets.empty(6, size, torch.device(device)) for _ in range(2))
    TritonRows().write_targets(logits, places, tables, got, temperature=0.7)
    TorchRows().write_targets(logits, places, tables, wanted, temperature=0.7)
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-7)
    assert wanted.best[1] == -1 and not wanted.probs[1].any()
