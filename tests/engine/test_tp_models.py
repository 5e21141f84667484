"""Tensor parallelism over gloo processes on loopback: the logits and features of one rank."""

from __future__ import annotations

import json
import os
import runpy
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from engine.config import load_model_config
from engine.tp import Meeting, TpGroup, init_tp_group, shard, validate_tp
from paceline.errors import ConfigError, UnavailableError

WORKER = Path(__file__).with_name("tp_worker.py")
ROOT = Path(__file__).parents[2]
START_LIMIT_S = 120  # torch imports slowly on a busy machine


def _sizes(heads: int, kv_heads: int) -> dict[str, int]:
    return {
        "hidden_size": 8 * heads,
        "intermediate_size": 50,  # and 101 tokens: remainders for 2 and 3 ranks
        "num_hidden_layers": 4,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": 101,
        "max_position_embeddings": 64,
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _save_fc(folder: Path, sizes: dict[str, int]) -> None:
    hidden = sizes["hidden_size"]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**sizes, "model_type": "llama", "num_hidden_layers": 1}))
    save_file({"fc.weight": 0.1 * torch.randn(hidden, 3 * hidden)}, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("size", "model_class", "config"),
    [
        (2, LlamaForCausalLM, LlamaConfig(**_sizes(16, 4), attention_bias=True)),
        (3, Qwen2ForCausalLM, Qwen2Config(**_sizes(9, 3), tie_word_embeddings=True)),
    ],
    ids=["2 ranks of 16 and 4 heads, untied", "3 ranks of 9 and 3 heads, tied"],
)
def test_several_ranks_give_the_logits_and_features_of_one(
    size: int, model_class: type, config: object, tmp_path: Path, save_random_checkpoint: Callable
) -> None:
    model_path, head_path, out = tmp_path / "model", tmp_path / "head", tmp_path / "out.npz"
    save_random_checkpoint(model_class, config, model_path)
    _save_fc(head_path, _sizes(config.num_attention_heads, config.num_key_value_heads))
    _assert_ranks_give_what_one_gives(size, model_path, head_path, out=out, tolerance=1e-4)


@pytest.mark.slow
def test_three_ranks_of_the_default_model_give_what_one_gives(tmp_path: Path) -> None:
    models = ROOT / "models"
    if not list((models / "smollm2-135m").glob("*.gguf")):
        pytest.skip("the default model is not fetched: make setup")
    out = tmp_path / "out.npz"
    _assert_ranks_give_what_one_gives(
        3, models / "smollm2-135m", models / "smollm2-135m-eagle3", out=out, tolerance=2e-3
    )


def _assert_ranks_give_what_one_gives(
    size: int, model_path: Path, head_path: Path, *, out: Path, tolerance: float
) -> None:
    port = str(_free_port())
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, WORKER, str(rank), str(size), port, model_path, head_path, out],
            env=environment,
            stderr=subprocess.PIPE,
        )
        for rank in range(size)
    ]
    try:
        single = runpy.run_path(str(WORKER))["run"](TpGroup(), model_path, head_path)
        for rank in ranks:
            errors = rank.communicate(timeout=START_LIMIT_S)[1]
            assert rank.returncode == 0, errors.decode()
    finally:
        for rank in ranks:
            rank.kill()
    with np.load(out) as shared:
        assert sorted(shared) == sorted(single)
        assert [len(shared[f"logits {i}"]) for i in range(5)] == [0, 2, 5, 0, 1]
        for name, wanted in single.items():
            np.testing.assert_allclose(shared[name], wanted, atol=tolerance, rtol=tolerance, err_msg=name)


def test_heads_that_do_not_divide_are_refused_with_the_sizes_that_do(
    tmp_path: Path, save_random_checkpoint: Callable
) -> None:
    save_random_checkpoint(LlamaForCausalLM, LlamaConfig(**_sizes(12, 6)), tmp_path)
    config = load_model_config(tmp_path)
    for size in (1, 2, 3, 6):
        validate_tp(config, size)
    for size in (0, 4, 12):
        with pytest.raises(
            ConfigError, match=rf"tp size {size} does not divide 12 heads and 6 KV .* one of 1, 2, 3, 6"
        ):
            validate_tp(config, size)


def test_shards_cover_everything_once_and_differ_by_at_most_one() -> None:
    for total in (0, 1, 7, 96, 101):
        for size in (1, 2, 3, 5):
            ends = [shard(total, rank, size) for rank in range(size)]
            assert [start for start, _ in ends] == [0, *(stop for _, stop in ends[:-1])]
            assert ends[-1][1] == total
            widths = [stop - start for start, stop in ends]
            assert max(widths) - min(widths) <= 1


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_that_never_come_end_the_wait_with_the_address(rank: int) -> None:
    address = f"tcp://127.0.0.1:{_free_port()}"
    with pytest.raises(UnavailableError, match=rf"rank {rank} of 2 did not meet the others at {address} within 0.2 s"):
        init_tp_group(rank, 2, init_method=address, meeting=Meeting(start_limit_s=0.2))


def test_a_group_of_one_passes_everything_through() -> None:
    tp = TpGroup()
    x = torch.randn(2, 3)
    packed = np.arange(4)
    assert tp.all_reduce(x) is x
    assert tp.gather_last_dim(x, 3) is x
    assert tp.broadcast_plan(packed) is packed
    tp.close()
