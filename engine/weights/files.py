"""ModelFiles: which files of a model path hold its config and its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.config_fields import read_fields
from engine.weights.inflation import INFLATION_FILE
from paceline.errors import ModelLoadError


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Exactly one of gguf, safetensors and inflation is set.

    A .gguf passed by its own path is described by its metadata alone."""

    path: Path
    config: Path | None
    generation_config: Path | None
    gguf: Path | None
    safetensors: tuple[Path, ...]  # sorted
    inflation: Path | None = None  # how to compute the weights from another model's


def find_model_files(path: Path) -> ModelFiles:
    """path: a folder with config.json and *.safetensors or inflation.json, one with one *.gguf, or a .gguf file.

    Raises ModelLoadError that says what was found instead.
    """
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelLoadError(f"{path} is not a model: pass a .gguf file or a folder with config.json and weights")
        return ModelFiles(path, None, None, path, ())
    if not path.is_dir():
        raise ModelLoadError(f"no model at {path}: pass a .gguf file or a folder with config.json and weights")
    config = _if_present(path / "config.json")
    generation_config = _if_present(path / "generation_config.json")
    safetensors = _safetensors(path)
    inflation = None if safetensors else _if_present(path / INFLATION_FILE)
    gguf = None if safetensors or inflation else _gguf(path)
    if config is None and gguf is None:
        raise ModelLoadError(f"{path} has no config.json; fetch it beside the weights")
    return ModelFiles(path, config, generation_config, gguf, safetensors, inflation)


def _if_present(path: Path) -> Path | None:
    return path if path.is_file() else None


def _safetensors(folder: Path) -> tuple[Path, ...]:
    """The index's shards, or model.safetensors, or all; other copies of the weights may lie beside them."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = set(read_fields(index).child("weight_map").values.values())
        shards = sorted(folder / str(name) for name in names)
        missing = [shard.name for shard in shards if not shard.is_file()]
        if missing or not shards:
            raise ModelLoadError(f"{index} names {missing or 'no shards'}, not found beside it; fetch them again")
        return tuple(shards)
    single = folder / "model.safetensors"
    return (single,) if single.is_file() else tuple(sorted(folder.glob("*.safetensors")))


def _gguf(folder: Path) -> Path:
    found = sorted(folder.glob("*.gguf"))
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(path.name for path in found)
        raise ModelLoadError(f"{folder} holds {len(found)} GGUF files ({names}); pass the path of one of them")
    pickled = ", ".join(sorted(path.name for path in folder.glob("*.bin")))
    if pickled:
        raise ModelLoadError(f"{folder} holds pickled weights ({pickled}); convert them to safetensors first")
    raise ModelLoadError(f"{folder} holds neither *.safetensors nor *.gguf; fetch the weights into it first")
