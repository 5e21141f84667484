"""config.json of an inflated target and of its head."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from engine.config import HeadConfig, ModelConfig, RopeConfig
from engine.weights.inflation import HEAD, TARGET, Inflation, ModelDims
from paceline.errors import ConfigError

_CLASS = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}


@dataclass(frozen=True, slots=True)
class InflatedPair:
    """A target and its head at a larger shape. head is None where there is none to inflate.

    Raises ConfigError for a model that cannot be inflated, or that does not fit into the shape.
    """

    target: Inflation
    head: Inflation | None
    target_config: dict[str, Any]
    head_config: dict[str, Any] | None

    @classmethod
    def of(cls, target: ModelConfig, head: HeadConfig | None, large: ModelDims) -> InflatedPair:
        if target.architecture not in _CLASS or target.qk_norm:
            raise ConfigError(
                f"--model-path is a {target.architecture}; only {' and '.join(_CLASS)} models can be inflated: "
                "a norm of q and k would have another eps"
            )
        whole = Inflation(TARGET, _dims(target, num_layers=target.num_layers), large)
        config = _target_config(target, whole)
        if head is None:
            return cls(whole, None, config, None)
        if head.hidden_size != target.hidden_size:
            raise ConfigError(
                f"the head has hidden size {head.hidden_size} and the target {target.hidden_size}; "
                "only a head of the target's own can be inflated"
            )
        one_layer = Inflation(HEAD, _dims(head, num_layers=1), dataclasses.replace(large, num_layers=1))
        return cls(whole, one_layer, config, _head_config(head, one_layer, _aux_layer_ids(head, whole)))


def _target_config(small: ModelConfig, inflation: Inflation) -> dict[str, Any]:
    return _shared(inflation, small.rope, small.rms_norm_eps) | {
        "architectures": [_CLASS[small.architecture]],
        "model_type": small.architecture,
        "num_hidden_layers": inflation.large.num_layers,
        "vocab_size": small.vocab_size,
        "max_position_embeddings": small.max_position_embeddings,
        "tie_word_embeddings": small.tie_word_embeddings,
        "attention_bias": small.attention_bias,
        "eos_token_id": list(small.eos_token_ids),
    }


def _head_config(small: HeadConfig, inflation: Inflation, aux_layer_ids: list[int]) -> dict[str, Any]:
    return _shared(inflation, small.rope, small.rms_norm_eps) | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "vocab_size": small.vocab_size,
        "draft_vocab_size": small.draft_vocab_size,
        "target_hidden_size": inflation.large.hidden_size,
        "eagle_aux_hidden_state_layer_ids": aux_layer_ids,
        "norm_before_residual": small.norm_before_residual,
        "norm_before_fc": small.norm_before_fc,
        "fc_norm": small.fc_norm,
        "norm_output": small.norm_output,
    }


def _shared(inflation: Inflation, rope: RopeConfig, eps: float) -> dict[str, Any]:
    large = inflation.large
    return {
        "hidden_size": large.hidden_size,
        "intermediate_size": large.intermediate_size,
        "num_attention_heads": large.num_heads,
        "num_key_value_heads": large.num_kv_heads,
        "head_dim": large.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": eps * inflation.eps_scale,
        **_rope(rope),
    }


def _rope(rope: RopeConfig) -> dict[str, Any]:
    """Of equal frequencies at the large head's pairs that hold a small one's."""
    scaling = {
        "default": None,
        "linear": {"rope_type": "linear", "factor": rope.factor},
        "llama3": {
            "rope_type": "llama3",
            "factor": rope.factor,
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
            "original_max_position_embeddings": rope.original_max_position,
        },
    }
    if rope.scaling not in scaling:
        raise ConfigError("--model-path has rotary divisors of its own (rope_freqs); it cannot be inflated")
    return {"rope_theta": rope.theta, "rope_scaling": scaling[rope.scaling]}


def _aux_layer_ids(head: HeadConfig, target: Inflation) -> list[int]:
    """Ids count outputs: the input of a layer is the output of the one before it."""
    places = [target.layer_place(layer) for layer in head.aux_layers(target.small.num_layers)]
    if min(places) == 0:
        raise ConfigError(
            "the head takes the target's embedding itself, which no layer id names: it cannot be inflated"
        )
    return [place - 1 for place in places]


def _dims(config: ModelConfig | HeadConfig, *, num_layers: int) -> ModelDims:
    return ModelDims(
        hidden_size=config.hidden_size,
        num_layers=num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        intermediate_size=config.intermediate_size,
    )
