"""Reading config.json: what is refused, by name and value, and what the fields become."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.config import RopeConfig, load_head_config, load_model_config
from paceline.errors import ModelLoadError

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128,
    "eos_token_id": 2,
}
HEAD = {**LLAMA, "num_hidden_layers": 1, "draft_vocab_size": 40}


def _model(folder: Path, **changes: object) -> Path:
    (folder / "model.safetensors").touch()
    (folder / "config.json").write_text(json.dumps({**LLAMA, **changes}))
    return folder


def _head(folder: Path, **changes: object) -> Path:
    (folder / "config.json").write_text(json.dumps({**HEAD, **changes}))
    return folder


def test_the_default_head_dim_and_kv_heads_follow_from_the_heads(tmp_path: Path) -> None:
    config = load_model_config(_model(tmp_path, num_key_value_heads=None))
    assert (config.head_dim, config.num_kv_heads) == (16, 4)
    assert config.rope == RopeConfig(theta=10000.0)
    assert not config.tie_word_embeddings


def test_end_tokens_of_both_config_files_count_once_each(tmp_path: Path) -> None:
    _model(tmp_path, eos_token_id=[7, 9])
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [9, 11]}')
    assert load_model_config(tmp_path).eos_token_ids == (7, 9, 11)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mixtral"}, "model_type is 'mixtral'; it must be one of llama, qwen2, qwen3"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; it must be 'silu'"),
        ({"mlp_bias": True}, "mlp_bias is True; it must be False"),
        ({"use_sliding_window": True}, "use_sliding_window is True; it must be False"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types is .*sliding_attention"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config is 'fp8'; it must be absent"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            "rope_type is 'yarn'; it must be one of default, linear",
        ),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope_type is 'dynamic'; it must be"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling: factor is missing"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; it must be 1.0"),
        ({"num_key_value_heads": 3}, "4 heads do not divide among 3 KV heads"),
        ({"hidden_size": "64"}, "hidden_size is '64'; it must be a whole number of 1 or more"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0; it must be"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps is -1.0; it must be a finite number above 0"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'; it must be true or false"),
        ({"eos_token_id": -1}, "eos_token_id is -1; it must be"),
        ({"rope_scaling": [4]}, r"rope_scaling is \[4\]; it must be an object"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_config_that_would_compute_otherwise_is_refused(
    changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadError, match=rf"config\.json.*{message}"):
        load_model_config(_model(tmp_path, **changes))


def test_a_config_that_is_no_json_object_is_refused(tmp_path: Path) -> None:
    _model(tmp_path)
    for text, message in (("{", "is not JSON"), ("[1]", "holds a list; it must hold one JSON object")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ModelLoadError, match=message):
            load_model_config(tmp_path)


def test_a_path_without_a_model_says_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"no model at .*nowhere"):
        load_model_config(tmp_path / "nowhere")
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ModelLoadError, match=r"notes\.txt is not a model: pass a \.gguf file or a folder"):
        load_model_config(tmp_path / "notes.txt")
    with pytest.raises(ModelLoadError, match=r"neither \*\.safetensors nor \*\.gguf"):
        load_model_config(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ModelLoadError, match=r"pickled weights \(pytorch_model\.bin\); convert them to safetensors"):
        load_model_config(tmp_path)
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(ModelLoadError, match=r"2 GGUF files \(a\.gguf, b\.gguf\); pass the path of one"):
        load_model_config(tmp_path)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelLoadError, match=r"has no config\.json"):
        load_model_config(tmp_path)


def test_default_aux_layers_are_2_the_middle_and_the_third_from_the_end(tmp_path: Path) -> None:
    config = load_head_config(_head(tmp_path))
    assert config.aux_layers(30) == (2, 15, 27)
    assert config.draft_vocab_size == 40


@pytest.mark.parametrize("nested", [True, False])
def test_an_explicit_aux_layer_id_means_that_layers_output(nested: bool, tmp_path: Path) -> None:
    ids = {"eagle_aux_hidden_state_layer_ids": [0, 4, 7]}
    config = load_head_config(_head(tmp_path, **({"eagle_config": ids} if nested else ids)))
    assert config.aux_layers(8) == (1, 5, 8)


def test_the_speculators_format_nests_the_layer_and_counts_layer_inputs(tmp_path: Path) -> None:
    top = {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": HEAD,
        "draft_vocab_size": 30,
        "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
    }
    (tmp_path / "config.json").write_text(json.dumps(top))
    config = load_head_config(tmp_path)
    assert config.aux_layers(8) == (2, 4, 5)
    assert config.norm_before_residual
    assert config.hidden_size == 64


def test_aux_layers_that_the_target_lacks_are_refused(tmp_path: Path) -> None:
    config = load_head_config(_head(tmp_path, eagle_aux_hidden_state_layer_ids=[1, 2, 8]))
    with pytest.raises(ModelLoadError, match=r"inputs of target layers \(2, 3, 9\); the target has 8 layers"):
        config.aux_layers(8)
    with pytest.raises(ModelLoadError, match="the target has 2 layers"):
        load_head_config(_head(tmp_path)).aux_layers(2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 2}, "num_hidden_layers is 2; it must be 1"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state is False; it must be True"),
        ({"eagle_config": {"use_mtp_layernorm": True}}, "use_mtp_layernorm is True; it must be False"),
        ({"eagle_config": {"use_last_layernorm": False}}, "use_last_layernorm is False; it must be True"),
        ({"parallel_draft_step": 4}, "parallel_draft_step is 4; it must be 1"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2]}, r"layer_ids is \(1, 2\); it must be a list of 3 layer ids"),
        ({"norm_before_fc": True, "fc_norm": True}, "norm_before_fc and fc_norm are both true"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_head_that_would_compute_otherwise_is_refused(
    changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadError, match=message):
        load_head_config(_head(tmp_path, **changes))
