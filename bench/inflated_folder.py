"""Writes an inflated model: its config, its tokenizer's files, and its weights or how to compute them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from engine.weights import InflatedSource, WeightSource, open_weights
from engine.weights.inflation import InflationFile

_SHARD_BYTES = 4 << 30
_COPIED = (".json", ".jinja", ".txt", ".model")
_NOT_COPIED = ("config.json", "generation_config.json", "inflation.json")


def write_config(folder: Path, config: dict[str, Any], *, small: Path) -> None:
    """Makes the folder, and copies small's tokenizer and templates into it."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted((small if small.is_dir() else small.parent).iterdir()):
        wanted = file.suffix in _COPIED and file.name not in _NOT_COPIED and not file.name.endswith(".index.json")
        if wanted and file.is_file():
            shutil.copyfile(file, folder / file.name)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def write_weights(folder: Path, file: InflationFile, *, dtype: torch.dtype, device: torch.device) -> None:
    """All tensors as safetensors in shards of about 4 GB, built on device one after another."""
    small = open_weights(file.weights)
    with closing(InflatedSource(file.inflation, small, device=device, seed=file.seed)) as source:
        shards = list(_shards(source, dtype.itemsize))
        where: dict[str, str] = {}
        num_bytes = 0
        with tqdm(total=sum(map(len, shards)), desc=str(folder), unit="tensor", disable=None) as bar:
            for number, names in enumerate(shards, 1):
                name = f"model-{number:05}-of-{len(shards):05}.safetensors"
                tensors = dict(_tensors(source, names, dtype, bar))
                save_file(tensors, folder / name, metadata={"format": "pt"})
                num_bytes += sum(tensor.nbytes for tensor in tensors.values())
                where.update(dict.fromkeys(names, name))
        index = {"metadata": {"total_size": num_bytes}, "weight_map": where}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _tensors(source: WeightSource, names: Iterable[str], dtype: torch.dtype, bar: tqdm) -> Iterator[tuple[str, Tensor]]:
    for name in names:
        tensor = source.get(name, None if name in ("d2t", "t2d") else dtype)
        bar.update()
        yield name, tensor.cpu().contiguous()


def _shards(source: WeightSource, value_bytes: int) -> Iterator[list[str]]:
    """Names in groups of at most _SHARD_BYTES, a larger tensor alone."""
    shard: list[str] = []
    num_bytes = 0
    for name in source.names():
        size = torch.Size(source.shape(name)).numel() * value_bytes
        if shard and num_bytes + size > _SHARD_BYTES:
            yield shard
            shard, num_bytes = [], 0
        shard.append(name)
        num_bytes += size
    if shard:
        yield shard
