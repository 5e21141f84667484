"""What only a GPU shows: the flash kernel's part of the attention, and the whole command on the default target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import training.diagonal_attention as attention
from paceline.defaults import DEFAULT_MODEL_PATH
from training.config import parse
from training.pipeline import Pipeline

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("depth", [0, 3])
def test_flash_attention_gives_the_plain_parts_results_and_gradients(
    monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = [(2, 9, 130, 64)] * 3 + [(depth, 2, 9, 130, 64)] * 2
    inputs = [torch.randn(shape, generator=generator, device="cuda").bfloat16().requires_grad_() for shape in shapes]
    grad = torch.randn(shapes[0], generator=generator, device="cuda").bfloat16()

    def run() -> list[torch.Tensor]:
        q, k, v, chain_k, chain_v = inputs
        out = attention.diagonal_attention(q, (k, v), (chain_k, chain_v))
        return [out, *torch.autograd.grad(out, inputs, grad)]

    flash = run()
    monkeypatch.setattr(attention, "_has_flash", lambda _: False)
    for got, wanted in zip(flash, run(), strict=True):
        torch.testing.assert_close(got, wanted, rtol=3e-2, atol=3e-2)


def test_the_default_target_gets_a_head_that_learns(tmp_path: Path) -> None:
    out = tmp_path / "out"
    flags = ["--tokens=200000", "--shard-sequences=128", "--seats=256", "--steps=60", "--batch-tokens=8192"]
    flags += ["--draft-vocab-size=8192", "--log-every=20", "--checkpoint-every=60", "--eval-count=2"]
    Pipeline(parse([f"--out={out}", f"--model-path={DEFAULT_MODEL_PATH}", "--device=cuda", *flags])).run()
    lines = [json.loads(line) for line in (out / "train" / "log.jsonl").read_text().splitlines()]
    trained = [line for line in lines if not line["held_out"]]
    assert all(last < first for first, last in zip(trained[0]["loss"], trained[-1]["loss"], strict=True))
    figures = json.loads((out / "evaluation.json").read_text())
    assert figures["rows"] and all(speed["tokens_per_s"] > 0 for speed in figures["speeds"])
