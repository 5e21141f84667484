"""HeadConfig: the shape of an EAGLE-3 head and the published switches, as its config.json states them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.config_fields import Fields, read_fields
from engine.model_config import ModelConfig, check_heads, refuse_variants
from engine.rope_config import RopeConfig, rope_from_fields
from paceline.errors import ModelLoadError

NUM_AUX = 3  # target layers whose inputs a feature is fused from


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """One decoder layer over (embedding, feature). Its context is the target's: published values are often too small.

    The switches (vLLM's and speculators' names): norm_before_residual: the residual starts from the normed
    feature; norm_before_fc: one norm over the concatenated aux inputs; fc_norm: one norm for each aux
    input; norm_output: the next draft step is fed the hidden state after the final norm.
    """

    hidden_size: int
    target_hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int  # the target's
    draft_vocab_size: int
    rms_norm_eps: float
    rope: RopeConfig
    aux_layer_ids: tuple[int, ...] | None  # id i: the OUTPUT of target layer i; None: the default layers
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool

    def aux_layers(self, num_target_layers: int) -> tuple[int, int, int]:
        """The target layers whose INPUT is captured; num_target_layers stands for the last layer's output.

        Raises ModelLoadError for ids that the target does not have.
        """
        default = (2, num_target_layers // 2, num_target_layers - 3)
        layers = default if self.aux_layer_ids is None else tuple(i + 1 for i in self.aux_layer_ids)
        if any(not 0 <= layer <= num_target_layers for layer in layers):
            raise ModelLoadError(
                f"the head takes the inputs of target layers {layers}; the target has {num_target_layers} layers: "
                "set eagle_aux_hidden_state_layer_ids in the head's config.json, or pass the head's own target"
            )
        first, second, third = layers
        return first, second, third

    def check_target(self, target: ModelConfig, origin: str) -> None:
        """Raises ModelLoadError where the target's hidden size is not the one that the head was made for."""
        if self.target_hidden_size != target.hidden_size:
            raise ModelLoadError(
                f"the head {origin} is for a target of hidden size {self.target_hidden_size}; this target has "
                f"{target.hidden_size}: pass the head that was trained for it"
            )


def load_head_config(path: Path) -> HeadConfig:
    """path: a folder with config.json and *.safetensors. Raises ModelLoadError."""
    top = read_fields(path / "config.json")
    layer = top.child("transformer_layer_config")
    nested = layer.has("hidden_size")
    merged = {**top.values, **top.child("eagle_config").values, **layer.values}
    fields = Fields(merged, top.origin)
    refuse_variants(fields)
    _refuse_other_heads(fields)
    hidden_size = fields.whole("hidden_size")
    num_heads = fields.whole("num_attention_heads")
    vocab_size = fields.whole("vocab_size")
    config = HeadConfig(
        hidden_size=hidden_size,
        target_hidden_size=fields.whole("target_hidden_size", hidden_size),
        num_heads=num_heads,
        num_kv_heads=fields.whole("num_key_value_heads", num_heads),
        head_dim=fields.whole("head_dim", hidden_size // num_heads),
        intermediate_size=fields.whole("intermediate_size"),
        vocab_size=vocab_size,
        draft_vocab_size=fields.whole("draft_vocab_size", vocab_size),
        rms_norm_eps=fields.real("rms_norm_eps", 1e-6),
        rope=rope_from_fields(fields),
        aux_layer_ids=_aux_layer_ids(fields, counts_inputs=nested),
        norm_before_residual=fields.flag("norm_before_residual", False),
        norm_before_fc=fields.flag("norm_before_fc", False),
        fc_norm=fields.flag("fc_norm", False),
        norm_output=fields.flag("norm_output", False),
    )
    check_heads(config.num_heads, config.num_kv_heads, fields.origin)
    if config.norm_before_fc and config.fc_norm:
        raise ModelLoadError(f"{fields.origin}: norm_before_fc and fc_norm are both true; a head has one of them")
    return config


def _refuse_other_heads(fields: Fields) -> None:
    """Refuses, by name, kinds of heads that are not EAGLE-3's single layer over three aux inputs."""
    layers = fields.whole("num_hidden_layers", 1)
    if layers != 1:
        wanted = "1, as of every EAGLE-3 head: this is another model"
        raise fields.error("num_hidden_layers", layers, wanted)
    fields.require("use_aux_hidden_state", True)
    fields.require("use_input_layernorm_in_first_layer", True)
    fields.require("use_last_layernorm", True)
    fields.require("use_mtp_layernorm", False)
    fields.require("parallel_draft_step", 1)


def _aux_layer_ids(fields: Fields, *, counts_inputs: bool) -> tuple[int, ...] | None:
    """counts_inputs: the speculators format, where id i is the input of layer i, that is the output of i - 1."""
    ids = fields.ids("eagle_aux_hidden_state_layer_ids")
    if not ids:
        return None
    if len(ids) != NUM_AUX:
        raise fields.error("eagle_aux_hidden_state_layer_ids", ids, f"a list of {NUM_AUX} layer ids")
    return tuple(i - 1 for i in ids) if counts_inputs else ids
