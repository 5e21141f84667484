"""Weights from a GGUF file, dequantised where they are read."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
from torch import Tensor

from engine.weights.gguf_header import GgufTensor, read_gguf_header
from engine.weights.gguf_names import ROPE_FREQS, by_halves, hf_name
from engine.weights.source import spread
from paceline.errors import ModelLoadError

_VALUES_A_BLOCK = 1 << 22  # values dequantised at once: bounds the fp32 scratch to 16 MB


class GgufSource:
    """A WeightSource over one mapped GGUF file. metadata: see GgufHeader."""

    def __init__(self, path: Path) -> None:
        self.origin = str(path)
        header = read_gguf_header(path)
        self.metadata = header.metadata
        self._data = np.memmap(path, np.uint8, mode="c")
        self._tensors = {_known_name(path, name): tensor for name, tensor in header.tensors.items()}
        architecture = header.metadata.get("general.architecture")
        self._heads = {}
        if architecture == "llama":
            self._heads = {"q_proj": self._count("head_count"), "k_proj": self._count("head_count_kv")}

    def names(self) -> list[str]:
        return sorted(self._tensors)

    def has(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return self._find(name).shape

    def get(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        tensor = self._find(name)
        values = torch.empty(tensor.shape, dtype=dtype or _plain_dtype(tensor.type))
        row_values = tensor.shape[-1]
        rows = values.view(-1, row_values)
        stored = self._stored(tensor).reshape(len(rows), -1)
        step = max(1, _VALUES_A_BLOCK // row_values)
        for start in range(0, len(rows), step):
            block = gguf.quants.dequantize(stored[start : start + step], tensor.type)
            rows[start : start + step].copy_(torch.from_numpy(np.ascontiguousarray(block)))
        heads = self._heads.get(name.split(".")[-2])
        return values if heads is None else by_halves(values, heads)

    def sample(self, name: str) -> bytes:
        tensor = self._find(name)
        stored = self._stored(tensor)
        header = f"{name} {tensor.shape} {tensor.type.name}".encode()
        return header + b"".join(stored[part].tobytes() for part in spread(len(stored)))

    def close(self) -> None:
        self._tensors.clear()
        del self._data

    def _stored(self, tensor: GgufTensor) -> np.ndarray:
        return self._data[tensor.offset : tensor.offset + tensor.num_bytes]

    def _find(self, name: str) -> GgufTensor:
        if name not in self._tensors:
            raise ModelLoadError(f"{self.origin} has no tensor {name}; the model needs it")
        return self._tensors[name]

    def _count(self, field: str) -> int:
        name = f"llama.attention.{field}"
        value = self.metadata.get(name, self.metadata.get("llama.attention.head_count"))
        if not isinstance(value, int) or value < 1:
            raise ModelLoadError(f"{self.origin}: {name} is {value!r}; it must be a whole number of 1 or more")
        return value


def _known_name(path: Path, name: str) -> str:
    known = name if name == ROPE_FREQS else hf_name(name)
    if known is None:
        raise ModelLoadError(f"{path} has a tensor {name}, which no supported architecture (llama, qwen2, qwen3) uses")
    return known


def _plain_dtype(kind: gguf.GGMLQuantizationType) -> torch.dtype:
    plain = {gguf.GGMLQuantizationType.F16: torch.float16, gguf.GGMLQuantizationType.BF16: torch.bfloat16}
    return plain.get(kind, torch.float32)
