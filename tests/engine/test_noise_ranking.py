"""Proposals ranked with the request's own noise are accepted more often, and change no token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer

from engine import reference_loop
from engine.drafter import Drafter, ExtendItem, ProposeParams
from engine.reference_loop import InProcess
from paceline.tree import DraftTree
from paceline.types import SamplingParams
from tests.support.in_process import HEAD
from tests.support.services import MODEL, TREE

QUESTIONS = [
    "Give me five tips for falling asleep faster.",
    "Explain how a rainbow forms, for a child of ten.",
    "Write a short story about a lighthouse keeper and a lost dog.",
    "What is 15 percent of 240? Show two ways to calculate it.",
    "Write a Python function that reverses a list, and explain it.",
    "Describe the water cycle in a few sentences.",
    "Write a polite email that asks for a day off.",
    "Name three causes of the French Revolution and explain each.",
]


class BlindDrafter(Drafter):
    """Ranks as if the requests were greedy."""

    def extend(self, items: Sequence[ExtendItem]) -> list[DraftTree | None]:
        return super().extend([replace(item, propose=_greedy(item.propose)) for item in items])


def _greedy(params: ProposeParams | None) -> ProposeParams | None:
    return None if params is None else replace(params, temperature=0.0)


def measure(loop: InProcess) -> tuple[list[tuple[int, ...]], float]:
    """The tokens of each request, and the accepted length over all rounds."""
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    tokens, accepted = [], []
    for seed, question in enumerate(QUESTIONS):
        text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        params = SamplingParams(max_tokens=80, temperature=1.0, seed=seed)
        generation = loop.generate(tokenizer.encode(text).ids, params, TREE)
        tokens.append(tuple(generation.tokens))
        accepted.extend(generation.accept_lengths)
    return tokens, sum(accepted) / len(accepted) + 1


@pytest.mark.slow
def test_ranking_with_the_requests_noise_accepts_15_percent_more_at_temperature_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_noise, longer = measure(InProcess(MODEL, HEAD, torch.float32))
    monkeypatch.setattr(reference_loop, "Drafter", BlindDrafter)
    without, shorter = measure(InProcess(MODEL, HEAD, torch.float32))
    print(f"accepted length {shorter:.3f} without the noise, {longer:.3f} with it")
    assert with_noise == without
    assert longer >= 1.15 * shorter
