"""One request in one process: the oracle agrees with transformers, and ends where it should."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
import torch

from engine.reference_loop import InProcess
from paceline.errors import InvalidInputError
from paceline.types import FinishReason, SamplingParams, TreeShape
from tests.support.tiny_target import CONTEXT, EOS, VOCAB, TinyTarget, random_prompt, save_tiny_target

CHAIN, TREE = TreeShape(5, 1, 6), TreeShape(5, 4, 16)
SHAPES = [None, TreeShape(1, 1, 2), CHAIN, TREE, TreeShape(9, 8, 64)]
MODELS = Path(__file__).parents[2] / "models"
PROMPTS = ["What is the capital of France?", "Write a haiku about a river."]
FREE = SamplingParams(max_tokens=16, ignore_eos=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyTarget:
    return save_tiny_target(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def loop(tiny: TinyTarget) -> InProcess:
    return InProcess(tiny.model_path, tiny.head_path, torch.float32, backend="reference")


@pytest.fixture(scope="module")
def default_loop() -> InProcess:
    if not list((MODELS / "smollm2-135m").glob("*.gguf")):
        pytest.skip("the default model is not fetched: make setup")
    return InProcess(MODELS / "smollm2-135m", MODELS / "smollm2-135m-eagle3", torch.float32)


def chat_ids(text: str) -> list[int]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(MODELS / "smollm2-135m" / "tokenizer.json"))
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    turns = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    return tokenizer.encode(turns, add_special_tokens=False).ids


@pytest.mark.slow
def test_greedy_tokens_equal_transformers_with_chain_tree_and_no_draft(default_loop: InProcess) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    from engine.weights import open_weights

    values = json.loads((MODELS / "smollm2-135m" / "config.json").read_text())
    oracle = LlamaForCausalLM(LlamaConfig(**values)).float().eval()
    source = open_weights(MODELS / "smollm2-135m")
    weights = {name: source.get(name).float() for name in source.names()}
    source.close()
    missing, unexpected = oracle.load_state_dict(weights, strict=False)
    assert set(missing) <= {"lm_head.weight"}
    assert not unexpected
    oracle.tie_weights()
    for text in PROMPTS:
        ids = chat_ids(text)
        with torch.no_grad():
            whole = oracle.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False)
        wanted = whole[0, len(ids) :].tolist()
        for shape in (None, CHAIN, TREE):
            assert default_loop.generate(ids, SamplingParams(max_tokens=24), shape).tokens == wanted, (text, shape)


def test_speculation_with_the_default_head_takes_fewer_rounds(default_loop: InProcess) -> None:
    ids = chat_ids(PROMPTS[0])
    plain = default_loop.generate(ids, FREE)
    drafted = default_loop.generate(ids, FREE, TREE)
    assert (plain.num_rounds, plain.accept_lengths) == (15, [])
    assert drafted.tokens == plain.tokens
    assert drafted.num_rounds < 12
    assert drafted.mean_accepted_length > 1.5


@pytest.mark.parametrize("params", [{}, {"temperature": 1.0}, {"temperature": 0.8, "top_k": 20, "top_p": 0.9}], ids=str)
def test_a_shape_changes_no_token(loop: InProcess, params: dict[str, float]) -> None:
    prompt = random_prompt(30)
    sampling = SamplingParams(max_tokens=16, ignore_eos=True, seed=3, **params)
    runs = [loop.generate(prompt, sampling, shape) for shape in SHAPES]
    assert all(run.tokens == runs[0].tokens for run in runs)
    assert len(runs[0].tokens) == 16


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_small_limits_are_kept_exactly(loop: InProcess, max_tokens: int, shape: TreeShape | None) -> None:
    wanted = loop.generate(random_prompt(9), replace(FREE, max_tokens=3)).tokens[:max_tokens]
    run = loop.generate(random_prompt(9), SamplingParams(max_tokens=max_tokens, ignore_eos=True), shape)
    assert (run.tokens, run.finish_reason) == (wanted, FinishReason.LENGTH)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_stop_token_ends_the_request_and_what_followed_it_is_dropped(
    loop: InProcess, shape: TreeShape | None
) -> None:
    prompt, sampling = random_prompt(12), SamplingParams(max_tokens=12, ignore_eos=True, temperature=8.0)
    free = loop.generate(prompt, sampling).tokens
    assert len(set(free)) > 5
    for stop in set(free[:6]):
        run = loop.generate(prompt, replace(sampling, stop_token_ids=(stop,)), shape)
        assert (run.tokens, run.finish_reason) == (free[: free.index(stop) + 1], FinishReason.STOP)


def test_a_stop_wins_over_the_length_limit(loop: InProcess) -> None:
    first = loop.generate(random_prompt(12), FREE).tokens[0]
    run = loop.generate(random_prompt(12), SamplingParams(max_tokens=1, stop_token_ids=(first,)))
    assert run.finish_reason == FinishReason.STOP


def test_the_end_token_stops_unless_it_is_ignored(loop: InProcess) -> None:
    wild = SamplingParams(max_tokens=8, ignore_eos=True, temperature=30.0)
    for seed in range(200):
        free = loop.generate(random_prompt(4), replace(wild, seed=seed)).tokens
        if EOS in free[:-1]:
            break
    else:
        pytest.fail("no seed drew the end token")
    run = loop.generate(random_prompt(4), replace(wild, seed=seed, ignore_eos=False))
    assert run.finish_reason == FinishReason.STOP
    assert run.tokens == free[: free.index(EOS) + 1]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("room", [1, 2, 5, 14])
def test_the_context_fills_to_its_last_token(loop: InProcess, shape: TreeShape | None, room: int) -> None:
    prompt = random_prompt(CONTEXT - room)
    wanted = loop.generate(prompt, SamplingParams(max_tokens=100, ignore_eos=True))
    assert len(wanted.tokens) == room
    run = loop.generate(prompt, SamplingParams(max_tokens=100, ignore_eos=True), shape)
    assert (run.tokens, run.finish_reason) == (wanted.tokens, FinishReason.LENGTH)


def test_a_prompt_of_several_chunks_gives_the_tokens_of_one_chunk(
    loop: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = random_prompt(50)
    whole = loop.generate(prompt, FREE, TREE)
    monkeypatch.setattr("engine.reference_loop._CHUNK_ROWS", 7)
    chunks = loop.generate(prompt, FREE, TREE)
    assert chunks.tokens == whole.tokens
    assert chunks.accept_lengths == whole.accept_lengths


def test_kept_tokens_are_told_step_by_step(loop: InProcess) -> None:
    told: list[list[int]] = []
    run = loop.generate(random_prompt(12), FREE, TREE, on_tokens=told.append)
    assert list(chain.from_iterable(told)) == run.tokens
    assert len(told) == run.num_rounds + 1
    assert len(told[0]) == 1


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "0 tokens"),
        ([1] * CONTEXT, f"{CONTEXT} tokens; it must have 1 to {CONTEXT - 1}"),
        ([3, VOCAB], f"from 3 to {VOCAB}"),
        ([-1], "-1"),
    ],
)
def test_a_prompt_that_cannot_run_is_refused(loop: InProcess, prompt: list[int], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        loop.generate(prompt, FREE)


def test_speculation_without_a_head_is_refused(tiny: TinyTarget) -> None:
    bare = InProcess(tiny.model_path, None, torch.float32, backend="reference")
    assert len(bare.generate(random_prompt(5), FREE).tokens) == 16
    with pytest.raises(InvalidInputError, match="pass head_path"):
        bare.generate(random_prompt(5), FREE, TREE)
