"""Each architecture against transformers, on small random checkpoints that transformers wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from engine.pages import PageAllocator, PageTable
from engine.plan import StepBuilder
from engine.target_model import TargetModel

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 101,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 10000.0,
}
LINEAR = {"rope_type": "linear", "factor": 2.5, "rope_theta": 5000.0}
CASES = {
    "llama with llama3 scaling": (LlamaForCausalLM, LlamaConfig(**SIZES, rope_parameters=LLAMA3)),
    "llama tied with linear scaling": (
        LlamaForCausalLM,
        LlamaConfig(**SIZES, rope_parameters=LINEAR, tie_word_embeddings=True),
    ),
    "llama with all biases": (LlamaForCausalLM, LlamaConfig(**SIZES, attention_bias=True)),
    "qwen2 tied": (Qwen2ForCausalLM, Qwen2Config(**SIZES, tie_word_embeddings=True)),
    "qwen2.5 untied": (Qwen2ForCausalLM, Qwen2Config(**SIZES, tie_word_embeddings=False, rms_norm_eps=1e-5)),
    "qwen3 with its own head_dim": (Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=False)),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers_in_chunks_decodes_and_trees(
    case: str,
    tmp_path: Path,
    load_target: Callable,
    save_random_checkpoint: Callable,
    assert_equals_transformers: Callable,
) -> None:
    reference = save_random_checkpoint(*CASES[case], tmp_path)
    assert_equals_transformers(load_target(tmp_path), reference)


def test_a_sharded_checkpoint_gives_the_same_logits(
    tmp_path: Path, load_target: Callable, save_random_checkpoint: Callable, assert_equals_transformers: Callable
) -> None:
    reference = save_random_checkpoint(*CASES["qwen2 tied"], tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert_equals_transformers(load_target(tmp_path), reference)


def test_an_older_config_with_rope_scaling_and_rope_theta_reads_the_same(
    tmp_path: Path, load_target: Callable, save_random_checkpoint: Callable, assert_equals_transformers: Callable
) -> None:
    reference = save_random_checkpoint(*CASES["llama with llama3 scaling"], tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    scaling = config.pop("rope_parameters")
    config["rope_theta"] = scaling.pop("rope_theta")
    config["rope_scaling"] = scaling
    path.write_text(json.dumps(config))
    assert_equals_transformers(load_target(tmp_path), reference)


def test_a_step_without_rows_moves_and_returns_no_logits(
    tmp_path: Path, load_target: Callable, save_random_checkpoint: Callable
) -> None:
    save_random_checkpoint(*CASES["qwen2 tied"], tmp_path)
    model = load_target(tmp_path)
    cache = model.make_cache(2, 4)
    cache.k[1][3] = 5.0
    builder = StepBuilder(4)
    builder.move(np.array([3]), np.array([6]))
    output = model.step(builder.build(), cache)
    assert output.logits.shape == (0, 101)
    assert output.features is None
    assert torch.equal(cache.k[1][6], cache.k[1][3])


def test_the_cache_takes_what_it_says_a_token(
    tmp_path: Path, load_target: Callable, save_random_checkpoint: Callable
) -> None:
    save_random_checkpoint(*CASES["qwen3 with its own head_dim"], tmp_path)
    model = load_target(tmp_path)
    cache = model.make_cache(5, 4)
    assert cache.num_bytes == (5 + 1) * 4 * model.cache_bytes_per_token  # one page is spare
    assert cache.features is None


def test_the_default_gguf_continues_a_chat_in_english(default_target: TargetModel) -> None:
    model = default_target
    tokenizer = Tokenizer.from_file(str(Path(__file__).parents[2] / "models" / "smollm2-135m" / "tokenizer.json"))
    cache = model.make_cache(4, 16)
    table = PageTable(PageAllocator(4, 16))
    table.reserve(64)
    question = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    tokens = tokenizer.encode(question).ids
    answer: list[int] = []
    start = 0
    while len(answer) < 7:
        builder = StepBuilder(16)
        builder.add_chunk(table, np.array(tokens[start:], np.int32), start, sample=True)
        start = len(tokens)
        answer.append(int(model.step(builder.build(), cache).logits.argmax()))
        tokens.append(answer[-1])
    assert tokenizer.decode(answer) == "The capital of France is Paris."
