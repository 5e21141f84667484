"""What is written is what Paceline, SGLang and vLLM load.

SGLang, python/sglang/srt/models/llama_eagle3.py at 03d5a7771f6082e7737a5f19cae7d1e863087013: parameters are looked up
under their name or "model." + name, with q, k, v and gate, up stacked; a name that it does not know is skipped without
a word, so the test holds that each is known. d2t + arange is the table of hot tokens, t2d is dropped. fc takes 3 *
target_hidden_size (or hidden_size), lm_head has draft_vocab_size rows unless tie_word_embeddings, which must be false;
qkv take 2 * hidden_size; nothing has a bias.

vLLM, vllm/model_executor/models/llama_eagle3.py at 00bd1493b3e82d6c13c68ee8a0e1c5a96707e190: "midlayer." becomes
"layers.0.", all but lm_head and d2t goes under "model.", t2d is dropped; an unknown name is an error. d2t becomes
draft_id_to_target_id, int64 of draft_vocab_size differences. Attention has biases where attention_bias or bias is set.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine.config import HeadConfig, load_head_config, load_model_config
from engine.rope_config import RopeConfig
from paceline.defaults import DEFAULT_HEAD_PATH
from paceline.errors import ConfigError
from tests.support.tiny_draft import CONTEXT, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, MLP, VOCAB
from tests.support.tiny_target import TinyTarget
from tests.support.tiny_training import small_config
from training.checkpoint import Checkpoint
from training.export import export_head, head_config_json
from training.pipeline import Pipeline

BF16 = torch.bfloat16


def expected(draft_vocab: int, dtype: torch.dtype) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """All that both servers have a place for in such a head, and what its place takes."""
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    layer = {
        "hidden_norm": (HIDDEN,),
        "input_layernorm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
        "self_attn.q_proj": (queries, 2 * HIDDEN),
        "self_attn.k_proj": (keys, 2 * HIDDEN),
        "self_attn.v_proj": (keys, 2 * HIDDEN),
        "self_attn.o_proj": (HIDDEN, queries),
        "mlp.gate_proj": (MLP, HIDDEN),
        "mlp.up_proj": (MLP, HIDDEN),
        "mlp.down_proj": (HIDDEN, MLP),
    }
    weights = {f"midlayer.{name}.weight": shape for name, shape in layer.items()}
    weights |= {"fc.weight": (HIDDEN, 3 * HIDDEN), "norm.weight": (HIDDEN,), "lm_head.weight": (draft_vocab, HIDDEN)}
    tables = {"d2t": ((draft_vocab,), torch.int64), "t2d": ((VOCAB,), torch.bool)}
    return {name: (shape, dtype) for name, shape in weights.items()} | tables


def test_names_shapes_and_dtypes_are_those_that_sglang_and_vllm_load(trained_once: Path, tmp_path: Path) -> None:
    checkpoint = Checkpoint.load(trained_once / "train" / "checkpoint.pt")
    export_head(tmp_path / "head", checkpoint, context_length=CONTEXT, dtype=BF16, card="")
    tensors = load_file(tmp_path / "head" / "model.safetensors")
    found = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
    assert found == expected(len(checkpoint.target_ids), BF16)
    target_ids = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    assert target_ids.tolist() == tensors["t2d"].nonzero().flatten().tolist() == checkpoint.target_ids.tolist()


def test_the_config_has_what_both_read(trained_once: Path) -> None:
    config = json.loads((trained_once / "head" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"] and config["model_type"] == "llama"
    assert config["tie_word_embeddings"] is False and config["num_hidden_layers"] == 1
    assert (config["vocab_size"], config["hidden_size"], config["head_dim"]) == (VOCAB, HIDDEN, HEAD_DIM)
    assert not {"attention_bias", "bias", "qkv_bias", "target_hidden_size", "eagle_config"} & config.keys()


def test_the_shipped_head_has_the_same_layout() -> None:
    shipped = json.loads((Path(DEFAULT_HEAD_PATH) / "config.json").read_text())
    again = head_config_json(load_head_config(Path(DEFAULT_HEAD_PATH)), context_length=8192, dtype=BF16)
    assert again == shipped


@pytest.mark.parametrize(
    "rope",
    [
        RopeConfig(5e5, "linear", factor=4.0),
        RopeConfig(5e5, "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8192),
    ],
)
def test_stretched_rotary_positions_are_read_back_alike(trained_once: Path, tmp_path: Path, rope: RopeConfig) -> None:
    checkpoint = Checkpoint.load(trained_once / "train" / "checkpoint.pt")
    config = head_config_json(_with_rope(checkpoint, rope), context_length=CONTEXT, dtype=BF16)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_head_config(tmp_path).rope == rope


def test_rotary_divisors_of_a_gguf_have_no_name_in_a_config(trained_once: Path) -> None:
    checkpoint = Checkpoint.load(trained_once / "train" / "checkpoint.pt")
    with pytest.raises(ConfigError, match=r"put the model's own config\.json"):
        head_config_json(
            _with_rope(checkpoint, RopeConfig(1e4, "divisors", divisors=(1.0,) * 4)), context_length=8, dtype=BF16
        )


def test_an_export_that_fails_leaves_the_head_that_was_there(
    trained: Path, chat_target: TinyTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    before = (trained / "head" / "model.safetensors").read_bytes()
    monkeypatch.setattr("training.export.save_file", full)
    with pytest.raises(Exception, match="No space left on device"):
        Pipeline(small_config(chat_target.model_path, trained, "--do=export")).run()
    assert (trained / "head" / "model.safetensors").read_bytes() == before
    assert not list(trained.glob("head.*"))


def test_a_head_can_go_on_from_another_with_more_tokens_and_a_wider_mlp(
    chat_target: TinyTarget, trained: Path, tmp_path: Path
) -> None:
    """Before its first step it guesses what the other one did."""
    first = Path(trained / "head").rename(tmp_path / "first")
    (trained / "train").rename(tmp_path / "train")
    flags = [
        "--do=train,export",
        f"--init-from={first}",
        "--intermediate-size=64",
        "--learning-rate=1e-12",
        "--steps=1",
    ]
    Pipeline(small_config(chat_target.model_path, trained, *flags, "--draft-vocab-size=97")).run()
    lines = [json.loads(line) for line in (trained / "train" / "log.jsonl").read_text().splitlines()]
    before = [json.loads(line) for line in (tmp_path / "train" / "log.jsonl").read_text().splitlines()]
    held_out, wanted = (next(line for line in reversed(log) if line["held_out"])["loss"] for log in (lines, before))
    assert held_out == pytest.approx(wanted, rel=1e-4)
    config = load_head_config(trained / "head")
    assert config.intermediate_size == 64
    config.check_target(load_model_config(chat_target.model_path), "head")


def _with_rope(checkpoint: Checkpoint, rope: RopeConfig) -> HeadConfig:
    return replace(checkpoint.config, rope=rope)
