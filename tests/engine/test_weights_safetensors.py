"""Safetensors folders: shards, damage, shapes, and the fingerprint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.tp import TpGroup
from engine.weights import fingerprint, open_weights
from engine.weights.loader import WeightLoader
from paceline.errors import ModelLoadError

TENSORS = {
    "a.weight": torch.arange(12.0).view(4, 3),
    "b.weight": torch.ones(2, 3, dtype=torch.bfloat16),
    "c.weight": torch.zeros(5, dtype=torch.int64),
}


def _folder(path: Path, files: dict[str, dict[str, torch.Tensor]], index: dict[str, str] | None = None) -> Path:
    path.mkdir()
    (path / "config.json").write_text("{}")
    for name, tensors in files.items():
        save_file(tensors, path / name)
    if index is not None:
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return path


def _loader(path: Path, *, rank: int = 0, size: int = 1) -> WeightLoader:
    return WeightLoader(open_weights(path), dtype=torch.float32, device=torch.device("cpu"), tp=TpGroup(rank, size))


def test_tensors_come_from_the_shards_that_the_index_names(tmp_path: Path) -> None:
    first = {"a.weight": TENSORS["a.weight"]}
    second = {name: TENSORS[name] for name in ("b.weight", "c.weight")}
    stale = {"a.weight": torch.zeros(1)}
    index = {"a.weight": "s1.safetensors", "b.weight": "s2.safetensors", "c.weight": "s2.safetensors"}
    files = {"s1.safetensors": first, "s2.safetensors": second, "consolidated.safetensors": stale}
    source = open_weights(_folder(tmp_path / "m", files, index))
    assert source.names() == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert torch.equal(source.get(name), tensor)
    assert source.get("b.weight", torch.float32).dtype == torch.float32


def test_a_shard_that_the_index_names_and_the_folder_lacks_is_named(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "m", {"s1.safetensors": TENSORS}, {"a.weight": "s1.safetensors", "z": "s9.safetensors"})
    with pytest.raises(ModelLoadError, match=r"names \['s9\.safetensors'\], not found"):
        open_weights(folder)


def test_a_truncated_file_is_refused_by_its_path_at_any_length(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "m", {"model.safetensors": TENSORS})
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for length in (0, 4, 40, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(
            ModelLoadError, match=r"model\.safetensors \(\d+ bytes\) is truncated or no safetensors file"
        ):
            open_weights(folder)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "m", {"model.safetensors": TENSORS})
    with pytest.raises(ModelLoadError, match=r"model\.safetensors has no tensor d\.weight"):
        _loader(folder).replicated("d.weight", (1,))


def test_a_shape_other_than_the_configs_is_refused(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "m", {"model.safetensors": TENSORS})
    with pytest.raises(ModelLoadError, match=r"a\.weight has shape \[4, 3\], the config says \[3, 4\]"):
        _loader(folder).replicated("a.weight", (3, 4))


def test_the_ranks_parts_make_the_whole_with_uneven_remainders(tmp_path: Path) -> None:
    tensors = {"x": torch.randn(10, 6), "y": torch.randn(7, 6), "z": torch.randn(6, 10)}
    folder = _folder(tmp_path / "m", {"model.safetensors": tensors})
    loaders = [_loader(folder, rank=rank, size=3) for rank in range(3)]
    fused = [loader.rows([("x", 10), ("y", 7)], 6) for loader in loaders]
    widths = [3, 3, 4]
    assert torch.equal(torch.cat([part[:width] for part, width in zip(fused, widths, strict=True)]), tensors["x"])
    assert torch.equal(torch.cat([part[width:] for part, width in zip(fused, widths, strict=True)]), tensors["y"])
    columns = [loader.columns("z", 6, 10) for loader in loaders]
    assert torch.equal(torch.cat(columns, dim=1), tensors["z"])
    assert sum(loader.num_bytes for loader in loaders) == 4 * (10 * 6 + 7 * 6 + 6 * 10)


def test_the_fingerprint_is_of_the_weights_not_of_their_shards(tmp_path: Path) -> None:
    whole = _folder(tmp_path / "whole", {"model.safetensors": TENSORS})
    parts = {f"{name}.safetensors": {name: tensor} for name, tensor in TENSORS.items()}
    split = _folder(tmp_path / "split", parts, {name: f"{name}.safetensors" for name in TENSORS})
    changed = {**TENSORS, "a.weight": TENSORS["a.weight"].clone()}
    changed["a.weight"][-1, -1] += 1
    other = _folder(tmp_path / "other", {"model.safetensors": changed})
    reshaped = {**TENSORS, "a.weight": TENSORS["a.weight"].view(3, 4)}
    third = _folder(tmp_path / "third", {"model.safetensors": reshaped})
    prints = [fingerprint(folder) for folder in (whole, split, other, third)]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3
    assert all(len(value) == 32 for value in prints)
