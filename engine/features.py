"""FeatureFuser: the part of an EAGLE-3 head that runs on the target, so that one token costs Hd values, not 3 H."""

from __future__ import annotations

import hashlib
from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor

from engine.head_config import NUM_AUX, HeadConfig, load_head_config
from engine.head_weights import open_head_weights
from engine.model_config import ModelConfig
from engine.tp import TpGroup
from engine.weights.loader import WeightLoader
from engine.weights.source import WeightSource
from kernels.ops import Ops


class FeatureFuser:
    """fc over the inputs of three target layers, with the head's norms before it where it has them.

    Loading raises ModelLoadError for a head of another target. feature_id: see the function.
    """

    def __init__(self, config: HeadConfig, target: ModelConfig, *, loader: WeightLoader, ops: Ops) -> None:
        layers = config.aux_layers(target.num_layers)
        width = config.target_hidden_size
        self.size = config.hidden_size
        self._columns = {layer: [i for i in range(NUM_AUX) if layers[i] == layer] for layer in set(layers)}
        self.feature_id = feature_id(loader.source, layers)
        self._fc = ops.prepare_weight(loader.replicated("fc.weight", (config.hidden_size, NUM_AUX * width)))
        norm_names = [f"fc_norm.{i}.weight" for i in range(NUM_AUX)] if config.fc_norm else []
        self._norms = [loader.replicated(name, (width,)) for name in norm_names]
        whole = config.norm_before_fc
        self._whole_norm = loader.replicated("input_norm.weight", (NUM_AUX * width,)) if whole else None
        self.weight_bytes = loader.num_bytes
        self._eps = config.rms_norm_eps
        self._width = width
        self._ops = ops

    def start(self, residual: Tensor) -> Tensor:
        """An empty buffer [rows, 3 H] for one step's aux inputs."""
        return residual.new_empty(residual.shape[0], NUM_AUX * self._width)

    def parts(self, aux: Tensor, layer: int) -> list[Tensor]:
        """The views [rows, H] of aux that the input of ``layer`` goes to; mostly none."""
        return [aux[:, i * self._width : (i + 1) * self._width] for i in self._columns.get(layer, ())]

    def fuse(self, aux: Tensor) -> Tensor:
        """aux [rows, 3 H] -> features [rows, Hd]. May mutate aux."""
        ops = self._ops
        for i, norm in enumerate(self._norms):
            part = aux[:, i * self._width : (i + 1) * self._width]
            part.copy_(ops.rms_norm(part, norm, self._eps))
        if self._whole_norm is not None:
            aux = ops.rms_norm(aux, self._whole_norm, self._eps)
        return ops.linear(aux, self._fc)


def load_fuser(
    head_path: Path, target: ModelConfig, *, dtype: torch.dtype, ops: Ops, device: torch.device
) -> FeatureFuser:
    """Raises ModelLoadError for a damaged head or one of another target."""
    config = load_head_config(head_path)
    config.check_target(target, str(head_path))
    with closing(open_head_weights(head_path, config, device=device)) as source:
        loader = WeightLoader(source, dtype=dtype, device=device, tp=TpGroup())
        return FeatureFuser(config, target, loader=loader, ops=ops)


def feature_id(source: WeightSource, layers: tuple[int, ...]) -> str:
    """32 hex digits, equal where features are: a hash of fc, the norms before it, and the captured layers."""
    digest = hashlib.sha256(repr(layers).encode())
    for name in source.names():
        if name.startswith(("fc.", "fc_norm.", "input_norm.")):
            stored = source.get(name).cpu().contiguous().view(torch.uint8)
            digest.update(f"{name} {source.shape(name)}".encode())
            digest.update(stored.numpy().tobytes())
    return digest.hexdigest()[:32]
