"""The weights of a published EAGLE-3 head under one set of names."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from engine.head_config import NUM_AUX, HeadConfig, load_head_config
from engine.model_config import ModelConfig
from engine.weights import WeightSource, open_weights
from paceline.errors import ModelLoadError

LAYER = "midlayer."

_LAYER_PREFIXES = (LAYER, "layers.0.")
_LAYER_NAMES = frozenset(
    LAYER + name
    for name in (
        "hidden_norm.weight",
        "input_layernorm.weight",
        "post_attention_layernorm.weight",
        *(f"self_attn.{part}_proj.{kind}" for part in "qkvo" for kind in ("weight", "bias")),
        *(f"self_attn.{part}_norm.weight" for part in "qk"),
        *(f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
    )
)
_WHOLE_NAMES = frozenset({"fc.weight", "norm.weight", "lm_head.weight", "embed_tokens.weight", "d2t", "t2d"})
_FC_NORM_NAMES = frozenset(f"fc_norm.{i}.weight" for i in range(NUM_AUX))


class HeadSource:
    """A WeightSource: "model." is dropped, "layers.0." reads as "midlayer."."""

    def __init__(self, files: WeightSource) -> None:
        self.origin = files.origin
        self._files = files
        self._file_names = {_canonical(name): name for name in files.names() if not name.endswith("inv_freq")}

    def names(self) -> list[str]:
        return sorted(self._file_names)

    def has(self, name: str) -> bool:
        return name in self._file_names

    def shape(self, name: str) -> tuple[int, ...]:
        return self._files.shape(self._file_names.get(name, name))

    def get(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        return self._files.get(self._file_names.get(name, name), dtype)

    def sample(self, name: str) -> bytes:
        return self._files.sample(self._file_names.get(name, name))

    def close(self) -> None:
        self._files.close()


def check_head(path: Path, target: ModelConfig) -> None:
    """What can be known before anything is loaded. Raises ModelLoadError that names the services' flag."""
    try:
        config = load_head_config(path)
        config.check_target(target, str(path))
        open_head_weights(path, config).close()
    except ModelLoadError as error:
        raise ModelLoadError(
            f"--speculative-draft-model-path is {path}; it must be a folder with the config.json and *.safetensors of "
            f"an EAGLE-3 head: {error}"
        ) from error


def open_head_weights(path: Path, config: HeadConfig, *, device: torch.device | None = None) -> HeadSource:
    """device: as in ``open_weights``.

    Raises ModelLoadError for a tensor that this head, by its config, has no use for: it would compute otherwise."""
    source = HeadSource(open_weights(path, device=device))
    known = _LAYER_NAMES | _WHOLE_NAMES
    if config.fc_norm:
        known |= _FC_NORM_NAMES
    if config.norm_before_fc:
        known |= {"input_norm.weight"}
    unknown = [name for name in source.names() if name not in known]
    if unknown:
        raise ModelLoadError(
            f"{source.origin} has tensors that its config gives no use: {', '.join(unknown)}; "
            "this is another kind of head, or norm_before_fc or fc_norm is missing in its config.json"
        )
    return source


def _canonical(name: str) -> str:
    name = name.removeprefix("model.")
    for prefix in _LAYER_PREFIXES:
        if name.startswith(prefix):
            return LAYER + name.removeprefix(prefix)
    return name
