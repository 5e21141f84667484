"""Inflation: how a small model lies inside a large one that computes the same function.

The small model's channels are the first of the large one's; all others stay zero, so that a norm divides by
sqrt(small / large) of what it did: its weight takes that factor, its eps the square of it. A rotary pair goes to
the pair of the same frequency, and q is scaled for the softmax's division by the larger head. Heads, MLP rows and
layers that the small model does not have are random, and what they would add to the stream is zero.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.config_fields import Fields, read_fields
from engine.weights.placement import Axis, Filler, Placement
from paceline.errors import ConfigError, ModelLoadError

INFLATION_FILE = "inflation.json"
TARGET, HEAD = "target", "head"

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_HEAD_LAYER = re.compile(r"(?:midlayer|layers\.0)\.(.+)")
_HIDDEN_NORM = re.compile(r"(?:\w*norm|fc_norm\.\d+)\.weight")  # not those of q and k, which norm a head
_UNCHANGED = ("d2t", "t2d")


@dataclass(frozen=True, slots=True)
class ModelDims:
    """What a shape is apart from its vocabulary."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int


@dataclass(frozen=True, slots=True)
class Inflation:
    """Of a target's or a head's weights. Raises ConfigError where small does not fit into large."""

    kind: str  # TARGET or HEAD
    small: ModelDims
    large: ModelDims

    def __post_init__(self) -> None:
        small, large = self.small, self.large
        for field in dataclasses.fields(ModelDims):
            ours, theirs = getattr(large, field.name), getattr(small, field.name)
            if ours < theirs:
                name = field.name.replace("_", "-")
                raise ConfigError(f"--{name} is {ours}; the small model has {theirs}: give as many or more")
        if large.head_dim % small.head_dim or small.head_dim % 2:
            raise ConfigError(f"--head-dim is {large.head_dim}; it must be a multiple of the small {small.head_dim}")
        if large.num_heads % large.num_kv_heads or _group(large) < _group(small):
            raise ConfigError(
                f"--num-heads is {large.num_heads} for {large.num_kv_heads} KV heads; it must be a multiple of them, "
                f"and at least {_group(small)} a KV head as in the small model"
            )

    @property
    def eps_scale(self) -> float:
        """Of rms_norm_eps."""
        return self.small.hidden_size / self.large.hidden_size

    def layer_place(self, layer: int) -> int:
        """Where a small layer lies; num_layers stands for the end of the last one."""
        return layer * self.large.num_layers // self.small.num_layers

    def role(self, name: str) -> tuple[str, int | None]:
        """A tensor's name without its layer, and the layer's number where a target has it in one."""
        if self.kind == TARGET and (match := _LAYER.fullmatch(name)):
            return match[2], int(match[1])
        stem = name.removeprefix("model.")
        inner = _HEAD_LAYER.fullmatch(stem)
        return (inner[1] if inner and self.kind == HEAD else stem), None

    def placement(self, role: str, small_shape: tuple[int, ...]) -> Placement | None:
        """None: the tensor stays as it is. Raises ModelLoadError for one that cannot be inflated."""
        if role in _UNCHANGED:
            return None
        small, large = self.small, self.large
        hidden = Axis.prefix(small.hidden_size, large.hidden_size)
        if role in ("embed_tokens.weight", "lm_head.weight"):
            return Placement(Axis.prefix(small_shape[0], small_shape[0]), hidden)
        if role == "fc.weight":
            return Placement(hidden, hidden.repeated(small_shape[1] // small.hidden_size))
        owner, _, part = role.rpartition("_proj.")
        if part in ("weight", "bias"):
            placed = self._projection(owner, hidden)
            if placed is not None:
                return placed if part == "weight" else Placement(placed.rows, scale=placed.scale)
        if _HIDDEN_NORM.fullmatch(role):
            whole = hidden.repeated(small_shape[0] // small.hidden_size)
            return Placement(whole, scale=math.sqrt(self.eps_scale), filler=Filler.ONE)
        raise ModelLoadError(f"{role} cannot be inflated: only plain Llama models and their EAGLE-3 heads can")

    def _projection(self, owner: str, hidden: Axis) -> Placement | None:
        small, large = self.small, self.large
        inner = Axis.prefix(small.intermediate_size, large.intermediate_size)
        inputs = hidden.repeated(2) if self.kind == HEAD else hidden
        if owner == "self_attn.q":
            scale = math.sqrt(large.head_dim / small.head_dim)
            return Placement(self._query_heads(), inputs, scale, Filler.RANDOM)
        if owner in ("self_attn.k", "self_attn.v"):
            return Placement(self._kv_heads(), inputs, filler=Filler.RANDOM)
        if owner == "self_attn.o":
            return Placement(hidden, self._query_heads())
        if owner in ("mlp.gate", "mlp.up"):
            return Placement(inner, hidden, filler=Filler.RANDOM)
        return Placement(hidden, inner) if owner == "mlp.down" else None

    def _query_heads(self) -> Axis:
        """A query head stays with its KV head."""
        small, large = self.small, self.large
        heads = torch.arange(small.num_heads)
        heads = heads // _group(small) * _group(large) + heads % _group(small)
        return Axis.heads(heads, self._rotary_places(), num_heads=large.num_heads, head_dim=large.head_dim)

    def _kv_heads(self) -> Axis:
        heads = torch.arange(self.small.num_kv_heads)
        large = self.large
        return Axis.heads(heads, self._rotary_places(), num_heads=large.num_kv_heads, head_dim=large.head_dim)

    def _rotary_places(self) -> Tensor:
        """[small head_dim]: the dimension of the same frequency, in the same half."""
        small, large = self.small.head_dim, self.large.head_dim
        half = torch.arange(small // 2) * (large // small)
        return torch.cat([half, half + large // 2])


@dataclass(frozen=True, slots=True)
class InflationFile:
    """What an inflated folder holds in place of weights. weights: the small model's, absolute or from the folder."""

    inflation: Inflation
    weights: Path
    seed: int

    def write(self, folder: Path) -> None:
        inflation = self.inflation
        values = {
            "kind": inflation.kind,
            "weights": str(self.weights),
            "seed": self.seed,
            "small": dataclasses.asdict(inflation.small),
            "large": dataclasses.asdict(inflation.large),
        }
        (folder / INFLATION_FILE).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> InflationFile:
        """Raises ModelLoadError for a damaged file."""
        fields = read_fields(path)
        kind = fields.text("kind")
        if kind not in (TARGET, HEAD):
            raise fields.error("kind", kind, f"{TARGET} or {HEAD}")
        seed = fields.values.get("seed")
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise fields.error("seed", seed, "a whole number")
        inflation = Inflation(kind, _dims(fields.child("small")), _dims(fields.child("large")))
        return cls(inflation, path.parent / fields.text("weights"), seed)


def _group(dims: ModelDims) -> int:
    """Query heads a KV head."""
    return dims.num_heads // dims.num_kv_heads


def _dims(fields: Fields) -> ModelDims:
    values: dict[str, Any] = {field.name: fields.whole(field.name) for field in dataclasses.fields(ModelDims)}
    return ModelDims(**values)
