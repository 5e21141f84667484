"""Export: a head as others load it, in EAGLE-3's published names, and its model card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.head_config import HeadConfig
from engine.rope_config import RopeConfig
from paceline.errors import ConfigError
from training.checkpoint import Checkpoint
from training.files import whole_folder, write_json

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"


def export_head(folder: Path, checkpoint: Checkpoint, *, context_length: int, dtype: torch.dtype, card: str) -> None:
    """Writes the folder anew, whole or not at all. Raises StorageError, and ConfigError for a rope without a name."""
    config = head_config_json(checkpoint.config, context_length=context_length, dtype=dtype)
    tensors = head_tensors(checkpoint, dtype)
    with whole_folder(folder) as part:
        save_file(tensors, part / WEIGHTS, metadata={"format": "pt"})
        write_json(part / CONFIG, config)
        (part / CARD).write_text(card, encoding="utf-8")


def head_tensors(checkpoint: Checkpoint, dtype: torch.dtype) -> dict[str, Tensor]:
    """Weights in dtype, d2t int64 differences, t2d bool."""
    vocabulary = checkpoint.vocabulary
    weights = {name: value.to(dtype).contiguous() for name, value in checkpoint.weights.items()}
    return {**weights, "d2t": vocabulary.d2t, "t2d": vocabulary.t2d}


def head_config_json(config: HeadConfig, *, context_length: int, dtype: torch.dtype) -> dict[str, Any]:
    """config.json as SGLang and vLLM read it. Raises ConfigError for rotary frequencies that it cannot say."""
    values: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "num_hidden_layers": 1,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope.theta,
        "max_position_embeddings": context_length,
        "tie_word_embeddings": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    scaling = _rope_scaling(config.rope)
    if scaling is not None:
        values["rope_scaling"] = scaling
    if config.target_hidden_size != config.hidden_size:
        values["target_hidden_size"] = config.target_hidden_size
    if config.aux_layer_ids is not None:
        ids = list(config.aux_layer_ids)
        values["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True}
    return values


def _rope_scaling(rope: RopeConfig) -> dict[str, Any] | None:
    if rope.scaling == "default":
        return None
    if rope.scaling == "linear":
        return {"rope_type": "linear", "factor": rope.factor}
    if rope.scaling == "llama3":
        return {
            "rope_type": "llama3",
            "factor": rope.factor,
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
            "original_max_position_embeddings": rope.original_max_position,
        }
    raise ConfigError(
        "the target's GGUF gives each rotary frequency a divisor of its own, which a head's config.json cannot say: "
        "put the model's own config.json and safetensors in --model-path"
    )
