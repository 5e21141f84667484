"""Weights of a model path, one file a format."""

from __future__ import annotations

import hashlib
from contextlib import closing
from pathlib import Path

import torch

from engine.weights.files import ModelFiles, find_model_files
from engine.weights.gguf_file import GgufSource
from engine.weights.inflated_source import InflatedSource
from engine.weights.inflation import InflationFile
from engine.weights.safetensors_files import SafetensorsSource
from engine.weights.source import WeightSource

__all__ = [
    "GgufSource",
    "InflatedSource",
    "ModelFiles",
    "WeightSource",
    "find_model_files",
    "fingerprint",
    "fingerprint_of",
    "open_weights",
]


def open_weights(path: Path, *, device: torch.device | None = None) -> WeightSource:
    """The tensors of a model folder or a .gguf file. Raises ModelLoadError.

    device: where tensors that are computed and not read are built; unset: the CPU.
    """
    files = find_model_files(path)
    if files.inflation is not None:
        file = InflationFile.read(files.inflation)
        return InflatedSource(
            file.inflation, open_weights(file.weights), device=device or torch.device("cpu"), seed=file.seed
        )
    return GgufSource(files.gguf) if files.gguf is not None else SafetensorsSource(files.safetensors)


def fingerprint(path: Path) -> str:
    """``fingerprint_of`` the weights at a model path."""
    with closing(open_weights(path)) as source:
        return fingerprint_of(source)


def fingerprint_of(source: WeightSource) -> str:
    """Identity of weights, 32 hex digits: names, shapes, types and sampled bytes of all tensors.

    The same weights give the same value however they are sharded. It reads a few hundred bytes a tensor.
    """
    digest = hashlib.sha256()
    for sample in sorted(source.sample(name) for name in source.names()):
        digest.update(sample)
    return digest.hexdigest()[:32]
