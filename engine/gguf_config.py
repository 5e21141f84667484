"""ModelConfig from a GGUF file's metadata, where no config.json lies beside it."""

from __future__ import annotations

from collections.abc import Mapping

from engine.config_fields import Fields
from engine.model_config import ARCHITECTURES, ModelConfig, check_heads
from engine.rope_config import RopeConfig
from engine.weights import GgufSource
from engine.weights.gguf_names import ROPE_FREQS


def model_config_from_gguf(source: GgufSource) -> ModelConfig:
    """Raises ModelLoadError for a missing field, another architecture, or an unsupported rotary scaling."""
    general = Fields(source.metadata, source.origin)
    architecture = general.text("general.architecture")
    if architecture not in ARCHITECTURES:
        raise general.error("general.architecture", architecture, f"one of {', '.join(ARCHITECTURES)}")
    general.require("split.count", 1)
    fields = Fields(_own_fields(source.metadata, architecture), f"{source.origin}, {architecture}.*")
    num_heads = fields.whole("attention.head_count")
    hidden_size = fields.whole("embedding_length")
    rope_dims = fields.whole("rope.dimension_count", hidden_size // num_heads)
    ends = general.ids("tokenizer.ggml.eos_token_id") + general.ids("tokenizer.ggml.eot_token_id")
    config = ModelConfig(
        architecture=architecture,
        hidden_size=hidden_size,
        num_layers=fields.whole("block_count"),
        num_heads=num_heads,
        num_kv_heads=fields.whole("attention.head_count_kv", num_heads),
        head_dim=fields.whole("attention.key_length", rope_dims),
        intermediate_size=fields.whole("feed_forward_length"),
        vocab_size=source.shape("model.embed_tokens.weight")[0],
        rms_norm_eps=fields.real("attention.layer_norm_rms_epsilon"),
        rope=_rope(fields),
        max_position_embeddings=fields.whole("context_length"),
        tie_word_embeddings=not source.has("lm_head.weight"),
        attention_bias=source.has("model.layers.0.self_attn.q_proj.bias"),
        output_bias=source.has("model.layers.0.self_attn.o_proj.bias"),
        qk_norm=source.has("model.layers.0.self_attn.q_norm.weight"),
        eos_token_ids=tuple(dict.fromkeys(ends)),
    )
    check_heads(config.num_heads, config.num_kv_heads, source.origin)
    return config


def with_rope_freqs(rope: RopeConfig, source: GgufSource) -> RopeConfig:
    """The frequency divisors that a GGUF file carries as a tensor stand for its scaling (Llama 3.1's is stored so)."""
    if not source.has(ROPE_FREQS):
        return rope
    return RopeConfig(rope.theta, "divisors", divisors=tuple(source.get(ROPE_FREQS).tolist()))


def _own_fields(metadata: Mapping[str, object], architecture: str) -> dict[str, object]:
    prefix = f"{architecture}."
    return {name.removeprefix(prefix): value for name, value in metadata.items() if name.startswith(prefix)}


def _rope(fields: Fields) -> RopeConfig:
    theta = fields.real("rope.freq_base", 10000.0)
    old_factor = fields.real("rope.scale_linear", 1.0)
    kind = fields.text("rope.scaling.type", "none" if old_factor == 1.0 else "linear")
    if kind == "none":
        return RopeConfig(theta)
    if kind == "linear":
        return RopeConfig(theta, kind, factor=fields.real("rope.scaling.factor", old_factor))
    raise fields.error("rope.scaling.type", kind, "none or linear")
