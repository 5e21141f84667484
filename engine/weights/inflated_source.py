"""Weights of a large model that are computed from a small one's where they are read."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.weights.inflation import Inflation
from engine.weights.placement import Placement
from engine.weights.source import WeightSource
from paceline.errors import ModelLoadError


@dataclass(frozen=True, slots=True)
class _Entry:
    """A large tensor. small_name: the small tensor in it or, where it is all filler, one of its shape."""

    role: str
    small_name: str
    is_filler: bool


class InflatedSource:
    """A WeightSource that builds each tensor on device, a fraction of a second for any size. Owns small.

    Raises ModelLoadError where small does not have the layers that the inflation says.
    """

    def __init__(self, inflation: Inflation, small: WeightSource, *, device: torch.device, seed: int = 0) -> None:
        self.origin = f"{small.origin}, inflated"
        self._inflation = inflation
        self._small = small
        self._device = device
        self._seed = seed
        self._entries = _entries(inflation, small)

    def names(self) -> list[str]:
        return sorted(self._entries)

    def has(self, name: str) -> bool:
        return name in self._entries

    def shape(self, name: str) -> tuple[int, ...]:
        entry = self._find(name)
        placement = self._placement(entry)
        return self._small.shape(entry.small_name) if placement is None else placement.shape

    def get(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        entry = self._find(name)
        placement = self._placement(entry)
        if placement is None:
            return self._small.get(entry.small_name, dtype)
        return placement.build(
            None if entry.is_filler else self._small.get(entry.small_name, torch.float32),
            dtype=dtype or self._small.get(entry.small_name).dtype,
            device=self._device,
            seed=zlib.crc32(f"{self._seed} {name}".encode()),
        )

    def sample(self, name: str) -> bytes:
        entry = self._find(name)
        stored = b"" if entry.is_filler else self._small.sample(entry.small_name)
        return f"{name} {self.shape(name)} {self._seed} ".encode() + stored

    def close(self) -> None:
        self._small.close()

    def _placement(self, entry: _Entry) -> Placement | None:
        return self._inflation.placement(entry.role, self._small.shape(entry.small_name))

    def _find(self, name: str) -> _Entry:
        if name not in self._entries:
            raise ModelLoadError(f"{self.origin}: there is no tensor {name}; the model needs it")
        return self._entries[name]


def _entries(inflation: Inflation, small: WeightSource) -> dict[str, _Entry]:
    """By the large model's names."""
    entries: dict[str, _Entry] = {}
    num_layers = inflation.small.num_layers
    layers = {inflation.layer_place(layer): layer for layer in range(num_layers)}
    for small_name in small.names():
        role, layer = inflation.role(small_name)
        if layer is None:
            entries[small_name] = _Entry(role, small_name, is_filler=False)
        elif layer >= num_layers:
            raise ModelLoadError(f"{small.origin} has {small_name}, but its inflation is of {num_layers} layers")
        elif layer == 0:
            for place in range(inflation.large.num_layers):
                source = small_name.replace(".0.", f".{layers.get(place, 0)}.", 1)
                entries[small_name.replace(".0.", f".{place}.", 1)] = _Entry(
                    role, source, is_filler=place not in layers
                )
    return entries
