"""GGUF files, written by the gguf package, read as its own dequantiser reads them."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from engine.config import RopeConfig, load_model_config
from engine.weights import GgufSource, open_weights
from paceline.errors import ModelLoadError

Q = gguf.GGMLQuantizationType
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
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
SCALE_OFFSETS = {Q.Q4_K: (0, 2), Q.Q5_K: (0, 2), Q.Q6_K: (208,)}  # of the fp16 scales in a block's bytes


def _stored(kind: gguf.GGMLQuantizationType, rows: int, columns: int) -> np.ndarray:
    """Bytes of a quantised matrix. The package cannot quantise to K types, so those blocks are random."""
    generator = np.random.default_rng(int(kind))
    values = generator.standard_normal((rows, columns)).astype(np.float32)
    if kind not in SCALE_OFFSETS:
        return gguf.quants.quantize(values, kind)
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = generator.integers(0, 256, (rows * columns // block, block_bytes), dtype=np.uint8)
    for offset in SCALE_OFFSETS[kind]:
        scale = generator.uniform(0.001, 0.1, len(blocks)).astype(np.float16)
        blocks[:, offset : offset + 2] = scale.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)


def _write(path: Path, architecture: str, tensors: dict[str, tuple[np.ndarray, gguf.GGMLQuantizationType]]) -> None:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    "kind", [Q.F32, Q.F16, Q.BF16, Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q4_K, Q.Q5_K, Q.Q6_K], ids=lambda kind: kind.name
)
def test_each_type_reads_as_the_package_dequantises_it(kind: gguf.GGMLQuantizationType, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    stored = _stored(kind, 6, 512)
    _write(
        path, "qwen2", {"blk.0.ffn_up.weight": (stored, kind), "output_norm.weight": (np.ones(4, np.float32), Q.F32)}
    )
    wanted = torch.from_numpy(gguf.quants.dequantize(stored, kind).reshape(6, 512).copy())
    source = open_weights(path)
    assert source.names() == ["model.layers.0.mlp.up_proj.weight", "model.norm.weight"]
    assert source.shape("model.layers.0.mlp.up_proj.weight") == (6, 512)
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.equal(source.get("model.layers.0.mlp.up_proj.weight", dtype), wanted.to(dtype))


def test_a_tensor_larger_than_a_block_of_rows_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.weights.gguf_file._VALUES_A_BLOCK", 150)
    stored = _stored(Q.Q8_0, 7, 64)
    _write(tmp_path / "m.gguf", "qwen2", {"output.weight": (stored, Q.Q8_0)})
    wanted = torch.from_numpy(gguf.quants.dequantize(stored, Q.Q8_0))
    assert torch.equal(open_weights(tmp_path / "m.gguf").get("lm_head.weight"), wanted)


def test_the_order_of_llama_q_and_k_rows_is_undone_and_that_of_qwen_is_not(tmp_path: Path) -> None:
    rows = np.arange(16, dtype=np.float32)[:, None] * np.ones((1, 32), np.float32)
    in_file = rows.reshape(4, 2, 2, 32).swapaxes(1, 2).reshape(16, 32)  # as llama.cpp's converter does
    for architecture in ("llama", "qwen2"):
        path = tmp_path / f"{architecture}.gguf"
        _write(path, architecture, {"blk.3.attn_q.weight": (in_file, Q.F32), "blk.3.attn_v.weight": (rows, Q.F32)})
        source = open_weights(path)
        wanted = rows if architecture == "llama" else in_file
        assert np.array_equal(source.get("model.layers.3.self_attn.q_proj.weight").numpy(), wanted)
        assert np.array_equal(source.get("model.layers.3.self_attn.v_proj.weight").numpy(), rows)


GGUF_MODELS = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SIZES, rope_parameters=LLAMA3)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SIZES, tie_word_embeddings=True)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=False)),
}


@pytest.mark.parametrize("architecture", GGUF_MODELS)
def test_a_model_from_gguf_metadata_alone_equals_transformers(
    architecture: str,
    tmp_path: Path,
    load_target: Callable,
    save_random_checkpoint: Callable,
    assert_equals_transformers: Callable,
) -> None:
    model_class, config = GGUF_MODELS[architecture]
    folder = tmp_path / "hf"
    reference = save_random_checkpoint(model_class, config, folder)
    path = tmp_path / "model.gguf"
    _convert(reference, architecture, path)
    loaded, wanted = load_model_config(path), load_model_config(folder)
    assert replace(loaded, rope=wanted.rope) == wanted
    assert_equals_transformers(load_target(path), reference)


def _convert(reference: torch.nn.Module, architecture: str, path: Path) -> None:
    """What llama.cpp's converter writes, for these architectures, in F32."""
    config = reference.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if architecture == "qwen3":
        writer.add_key_length(config.head_dim)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_token_list([f"token {i}" for i in range(config.vocab_size)])
    if config.rope_parameters["rope_type"] == "llama3":
        rotary = reference.model.rotary_emb
        dim = config.hidden_size // config.num_attention_heads
        plain = 1.0 / config.rope_parameters["rope_theta"] ** (torch.arange(0, dim, 2).float() / dim)
        writer.add_tensor("rope_freqs.weight", (plain / rotary.inv_freq).numpy())
    for name, weight in reference.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        data = weight.float().numpy()
        part = re.search(r"\.([qk])_proj\.", name)
        if architecture == "llama" and part:
            heads = config.num_attention_heads if part[1] == "q" else config.num_key_value_heads
            data = data.reshape(heads, 2, -1, *data.shape[1:]).swapaxes(1, 2).reshape(data.shape)
        writer.add_tensor(_gguf_name(name, config.num_hidden_layers, architecture), np.ascontiguousarray(data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_config(path: Path, **fields: object) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    known = {"block_count": 2, "context_length": 64, "embedding_length": 32, "feed_forward_length": 48}
    known |= {"attention.head_count": 4, "attention.layer_norm_rms_epsilon": 1e-5}
    for name, value in {**known, **fields}.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(name if name.startswith("split") else f"llama.{name}", value)
    writer.add_tensor("token_embd.weight", np.ones((10, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    "fields",
    [{"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {"rope.scale_linear": 4.0}],
    ids=["new", "old"],
)
def test_linear_scaling_reads_from_the_new_and_the_old_metadata(fields: dict[str, object], tmp_path: Path) -> None:
    _write_config(tmp_path / "m.gguf", **fields)
    config = load_model_config(tmp_path / "m.gguf")
    assert config.rope == RopeConfig(10000.0, "linear", factor=4.0)
    assert (config.vocab_size, config.num_kv_heads, config.head_dim) == (10, 4, 8)
    assert config.tie_word_embeddings


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rope.scaling.type": "yarn"}, r"rope\.scaling\.type is 'yarn'; it must be none or linear"),
        ({"split.count": 3}, r"split\.count is 3; it must be 1"),
        ({"attention.head_count_kv": 3}, "4 heads do not divide among 3 KV heads"),
        ({"block_count": 0}, r"llama\.\*: block_count is 0; it must be"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_metadata_that_would_compute_otherwise_is_refused(
    fields: dict[str, object], message: str, tmp_path: Path
) -> None:
    _write_config(tmp_path / "m.gguf", **fields)
    with pytest.raises(ModelLoadError, match=rf"m\.gguf.*{message}"):
        load_model_config(tmp_path / "m.gguf")


def _gguf_name(name: str, num_layers: int, architecture: str) -> str:
    known = {arch_name: arch for arch, arch_name in gguf.MODEL_ARCH_NAMES.items()}
    found = gguf.get_tensor_name_map(known[architecture], num_layers).get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return found


def test_an_unsupported_type_is_refused_with_the_file_tensor_and_type(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    _write(path, "llama", {"output.weight": (_stored(Q.Q5_0, 2, 64), Q.Q5_0)})
    with pytest.raises(ModelLoadError, match=r"model\.gguf: output\.weight is Q5_0; supported types are F32, .*Q6_K"):
        open_weights(path)


def test_a_truncated_file_is_refused_at_any_length(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    _write(path, "llama", {"output.weight": (_stored(Q.Q8_0, 4, 64), Q.Q8_0)})
    whole = path.read_bytes()
    for length in (0, 3, 10, 60, 120, len(whole) - 200):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelLoadError, match=r"model\.gguf"):
            open_weights(path)


def test_a_damaged_length_in_the_metadata_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    key, length = struct.pack("<Q1sI", 1, b"k", 9), struct.pack("<IQQ", 8, 2, 2**64 - 1)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + length + b"abc")
    with pytest.raises(ModelLoadError, match=r"damaged: a string of 18446744073709551615 bytes"):
        open_weights(path)


def test_what_is_no_gguf_file_is_refused_by_its_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(ModelLoadError, match="no GGUF file: it begins with b'PK"):
        open_weights(path)


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    _write(path, "gemma2", {"token_embd.weight": (np.ones((4, 32), np.float32), Q.F32)})
    with pytest.raises(
        ModelLoadError, match=r"general\.architecture is 'gemma2'; it must be one of llama, qwen2, qwen3"
    ):
        load_model_config(path)


def test_a_tensor_that_no_supported_model_has_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    _write(path, "llama", {"blk.0.ffn_gate_exps.weight": (np.ones((4, 32), np.float32), Q.F32)})
    with pytest.raises(ModelLoadError, match=r"blk\.0\.ffn_gate_exps\.weight"):
        open_weights(path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    _write(path, "llama", {"output.weight": (np.ones((4, 32), np.float32), Q.F32)})
    with pytest.raises(ModelLoadError, match=r"model\.gguf has no tensor model\.norm\.weight"):
        GgufSource(path).get("model.norm.weight")
