"""ModelConfig: the shape of a target model, as Hugging Face's config.json states it."""

from __future__ import annotations

from dataclasses import dataclass

from engine.config_fields import Fields
from engine.rope_config import RopeConfig, rope_from_fields
from paceline.errors import ConfigError, ModelLoadError

ARCHITECTURES = ("llama", "qwen2", "qwen3")
_DEFAULT_HEAD_DIM = {"qwen3": 128}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Dense decoder with RMSNorm, rotary positions, grouped-query attention and a gated SiLU MLP."""

    architecture: str  # one of ARCHITECTURES
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int  # divides num_heads
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float
    rope: RopeConfig
    max_position_embeddings: int  # tokens of context
    tie_word_embeddings: bool  # the output matrix is the embedding
    attention_bias: bool  # q, k and v have a bias
    output_bias: bool  # o has a bias
    qk_norm: bool  # q and k are normed per head before the rotation
    eos_token_ids: tuple[int, ...]

    def context_length(self, asked: int | None) -> int:
        """Tokens of a request, for --context-length or None. Raises ConfigError for more than there are positions."""
        if asked is not None and asked > self.max_position_embeddings:
            raise ConfigError(
                f"--context-length is {asked}; the model has positions for {self.max_position_embeddings}"
            )
        return self.max_position_embeddings if asked is None else asked


def model_config_from_json(fields: Fields, generation: Fields | None) -> ModelConfig:
    """fields: config.json; generation: generation_config.json, which may list more end tokens.

    Raises ModelLoadError for a missing field, another architecture, or a variant that would compute otherwise."""
    architecture = fields.text("model_type")
    if architecture not in ARCHITECTURES:
        raise fields.error("model_type", architecture, f"one of {', '.join(ARCHITECTURES)}")
    refuse_variants(fields)
    num_heads = fields.whole("num_attention_heads")
    hidden_size = fields.whole("hidden_size")
    full_bias = fields.flag("attention_bias", False) and architecture != "qwen2"
    config = ModelConfig(
        architecture=architecture,
        hidden_size=hidden_size,
        num_layers=fields.whole("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=fields.whole("num_key_value_heads", num_heads),
        head_dim=fields.whole("head_dim", _DEFAULT_HEAD_DIM.get(architecture, hidden_size // num_heads)),
        intermediate_size=fields.whole("intermediate_size"),
        vocab_size=fields.whole("vocab_size"),
        rms_norm_eps=fields.real("rms_norm_eps", 1e-6),
        rope=rope_from_fields(fields),
        max_position_embeddings=fields.whole("max_position_embeddings", 2048),
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        attention_bias=full_bias or architecture == "qwen2",
        output_bias=full_bias,
        qk_norm=architecture == "qwen3",
        eos_token_ids=_eos_token_ids(fields, generation),
    )
    check_heads(config.num_heads, config.num_kv_heads, fields.origin)
    return config


def refuse_variants(fields: Fields) -> None:
    """Refuses, by name, config switches that change what a layer computes."""
    fields.require("hidden_act", "silu")
    fields.require("mlp_bias", False)
    fields.require("use_sliding_window", False)
    if fields.has("quantization_config"):
        method = fields.child("quantization_config").values.get("quant_method")
        wanted = "absent: load full-precision safetensors, or a GGUF of a supported type"
        raise fields.error("quantization_config", method, wanted)
    layer_types = fields.values.get("layer_types") or []
    if isinstance(layer_types, list) and any(kind != "full_attention" for kind in layer_types):
        raise fields.error("layer_types", layer_types, "full_attention for every layer")


def check_heads(num_heads: int, num_kv_heads: int, origin: str) -> None:
    """Raises ModelLoadError unless the query heads divide into one group a KV head."""
    if num_heads % num_kv_heads:
        raise ModelLoadError(f"{origin}: {num_heads} heads do not divide among {num_kv_heads} KV heads")


def _eos_token_ids(fields: Fields, generation: Fields | None) -> tuple[int, ...]:
    """config.json's end tokens, then those that generation_config.json adds (chat models list more there)."""
    ids = fields.ids("eos_token_id")
    if generation is not None:
        ids += generation.ids("eos_token_id")
    return tuple(dict.fromkeys(ids))
