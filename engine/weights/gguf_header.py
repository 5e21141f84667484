"""The header of a GGUF file: metadata and where each tensor lies.

Layout: ggml's docs/gguf.md. The gguf package's own reader wraps every vocabulary entry in arrays, which takes
seconds a process for what is not needed here: the router reads the tokenizer, the engine does not.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from paceline.errors import ModelLoadError

SUPPORTED_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K")

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Rows of quantised blocks: a row is row_bytes long and holds shape[-1] values."""

    name: str
    shape: tuple[int, ...]  # outermost first, as torch has it
    type: gguf.GGMLQuantizationType
    offset: int  # bytes from the file's start
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """metadata: scalars, strings, and arrays of scalars as tuples; an array of strings is left as its length."""

    metadata: dict[str, object]
    tensors: dict[str, GgufTensor]


def read_gguf_header(path: Path) -> GgufHeader:
    """Raises ModelLoadError for what is no GGUF file, a truncated one, or a tensor of an unsupported type."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(_Cursor(data), path)
    except OSError as error:
        raise ModelLoadError(f"cannot read {path}: {error.strerror}") from error
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise ModelLoadError(f"{path} is truncated or damaged: {error}; fetch it again") from error


class _Cursor:
    """Reads little-endian values one after another."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def scalar(self, code: str) -> int | float | bool:
        value: int | float | bool = struct.unpack_from(code, self.data, self.at)[0]
        self.at += struct.calcsize(code)
        return float(str(np.float32(value))) if code == "<f" else value  # 1e-05, not its fp32 in 17 digits

    def whole(self, code: str) -> int:
        return int(self.scalar(code))

    def skip_string(self) -> int:
        """Returns where it began."""
        size = self.whole("<Q")
        start = self.at
        if size > len(self.data) - start:
            raise ValueError(f"a string of {size} bytes runs past the end")
        self.at += size
        return start

    def string(self) -> str:
        start = self.skip_string()
        return self.data[start : self.at].decode("utf-8")

    def value(self, kind: int) -> object:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise ValueError(f"metadata of unknown type {kind} at byte {self.at}")
        return self.scalar(_SCALARS[kind])

    def _array(self) -> object:
        kind, length = self.whole("<I"), self.whole("<Q")
        if kind == _STRING:
            for _ in range(length):
                self.skip_string()
            return length
        if kind == _ARRAY:
            raise ValueError(f"an array of arrays at byte {self.at}")
        return tuple(self.value(kind) for _ in range(length))


def _parse(cursor: _Cursor, path: Path) -> GgufHeader:
    if cursor.data[:4] != b"GGUF":
        raise ModelLoadError(f"{path} is no GGUF file: it begins with {bytes(cursor.data[:4])!r}")
    cursor.at = 4
    version = cursor.whole("<I")
    if version not in _VERSIONS:
        raise ModelLoadError(f"{path} is GGUF version {version}; versions 2 and 3, little-endian, are supported")
    num_tensors, num_fields = cursor.whole("<Q"), cursor.whole("<Q")
    metadata: dict[str, object] = {}
    for _ in range(num_fields):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.whole("<I"))
    tensors = [_tensor(cursor, path) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"general.alignment is {alignment!r}")
    start = -(-cursor.at // alignment) * alignment
    placed = {}
    for tensor in tensors:
        end = start + tensor.offset + tensor.num_bytes
        if end > len(cursor.data):
            size = len(cursor.data)
            raise ModelLoadError(f"{path} is truncated: {tensor.name} ends at byte {end} of {size}; fetch it again")
        placed[tensor.name] = GgufTensor(
            tensor.name, tensor.shape, tensor.type, start + tensor.offset, tensor.num_bytes
        )
    return GgufHeader(metadata, placed)


def _tensor(cursor: _Cursor, path: Path) -> GgufTensor:
    name = cursor.string()
    num_dims = cursor.whole("<I")
    if num_dims > 4:
        raise ValueError(f"{name} has {num_dims} dimensions")
    shape = tuple(cursor.whole("<Q") for _ in range(num_dims))[::-1]
    number = cursor.whole("<I")
    try:
        kind = gguf.GGMLQuantizationType(number)
    except ValueError:
        kind = None
    if kind is None or kind.name not in SUPPORTED_TYPES:
        shown = f"unknown type {number}" if kind is None else kind.name
        supported = ", ".join(SUPPORTED_TYPES)
        raise ModelLoadError(f"{path}: {name} is {shown}; supported types are {supported}: convert the file to one")
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    if not shape or shape[-1] % block:
        raise ValueError(f"{name} of shape {shape} does not divide into blocks of {block}")
    num_values = 1
    for size in shape:
        num_values *= size
    return GgufTensor(name, shape, kind, cursor.whole("<Q"), num_values // block * block_bytes)
