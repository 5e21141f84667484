"""Weights from one or more safetensors files."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.weights.source import spread
from paceline.errors import ModelLoadError


class SafetensorsSource:
    """A WeightSource over files that are mapped, not read. Raises ModelLoadError for a damaged one."""

    def __init__(self, files: tuple[Path, ...]) -> None:
        self.origin = str(files[0] if len(files) == 1 else files[0].parent)
        self._handles: list[safe_open] = []
        self._where: dict[str, tuple[Path, safe_open]] = {}
        for path in files:
            handle = _open(path)
            self._handles.append(handle)
            names = handle.keys()
            self._where.update((name, (path, handle)) for name in names)

    def names(self) -> list[str]:
        return sorted(self._where)

    def has(self, name: str) -> bool:
        return name in self._where

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._find(name)[1].get_slice(name).get_shape())

    def get(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        path, handle = self._find(name)
        try:
            tensor: Tensor = handle.get_tensor(name)
        except (SafetensorError, RuntimeError) as error:
            raise ModelLoadError(f"{path}: cannot read {name}: {error}; fetch the file again") from error
        return tensor if dtype is None else tensor.to(dtype)

    def sample(self, name: str) -> bytes:
        tensor = self.get(name).contiguous()
        stored = tensor.view(-1).view(torch.uint8) if tensor.numel() else tensor.new_empty(0, dtype=torch.uint8)
        header = f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode()
        return header + b"".join(stored[part].numpy().tobytes() for part in spread(stored.numel()))

    def close(self) -> None:
        self._where.clear()
        for handle in self._handles:
            handle.__exit__(None, None, None)
        self._handles.clear()

    def _find(self, name: str) -> tuple[Path, safe_open]:
        if name not in self._where:
            raise ModelLoadError(f"{self.origin} has no tensor {name}; the model needs it")
        return self._where[name]


def _open(path: Path) -> safe_open:
    try:
        handle = safe_open(path, framework="pt", device="cpu")
        handle.__enter__()
    except SafetensorError as error:
        size = path.stat().st_size
        message = f"{path} ({size} bytes) is truncated or no safetensors file: {error}; fetch it again"
        raise ModelLoadError(message) from error
    except OSError as error:
        raise ModelLoadError(f"cannot open {path}: {error}") from error
    return handle
