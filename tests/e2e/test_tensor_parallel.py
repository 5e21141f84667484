"""A target over several ranks gives the tokens of one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from client.client import PacelineClient
from client.launcher import Fleet
from client.launcher_config import FleetConfig
from client.request import Sampling
from tests.support.services import PATIENT, TREE, WAIT_S, ask

SAMPLING = Sampling(max_tokens=24)


@pytest.fixture
def random_model(tmp_path: Path) -> Path:
    """A random Llama of 16 heads and 4 KV heads, with the default model's tokenizer for the router."""
    torch.manual_seed(11)
    config = LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=6,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=8,
        vocab_size=49152,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.3,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / name).symlink_to(Path(FleetConfig().model_path).resolve() / name)
    return tmp_path


def outputs(config: FleetConfig, prompts: list[list[int]]) -> list[tuple[int, ...]]:
    fleet = Fleet(config)
    with fleet, PacelineClient(fleet.router_address, request_timeout_s=WAIT_S) as client:
        return [client.generate(ids, sampling=SAMPLING).result().token_ids for ids in prompts]


def test_two_ranks_give_the_tokens_of_one_on_a_random_model(random_model: Path) -> None:
    prompts = [[1, 5, 300 + i, 77] * (i + 1) for i in range(4)]
    settings = {"model_path": str(random_model), "head_path": "", "dtype": "float32", "num_drafts": 0}
    one = outputs(FleetConfig(**settings), prompts)
    assert outputs(FleetConfig(**settings, tp_size=2), prompts) == one
    assert len({*one}) == len(one)


@pytest.fixture(scope="module")
def three_ranks() -> Iterator[PacelineClient]:
    fleet = Fleet(FleetConfig(dtype="float32", tp_size=3, target_flags=PATIENT))
    with fleet, PacelineClient(fleet.router_address, request_timeout_s=WAIT_S) as client:
        yield client


@pytest.mark.slow
def test_three_ranks_give_the_tokens_of_one_with_and_without_speculation(
    three_ranks: PacelineClient, fp32_client: PacelineClient, prompts: list[str]
) -> None:
    for prompt in prompts[:2]:
        expected = ask(fp32_client, prompt, SAMPLING, False).token_ids
        assert ask(three_ranks, prompt, SAMPLING, False).token_ids == expected
        drafted = ask(three_ranks, prompt, SAMPLING, TREE)
        assert drafted.token_ids == expected
        assert drafted.stats.speculative_rounds > 0
