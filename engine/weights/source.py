"""WeightSource: the tensors of a model under Hugging Face's names, whatever file they lie in."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class WeightSource(Protocol):
    """Read-only, on the CPU unless its tensors are computed.

    Raises ModelLoadError, naming file and tensor, for what is missing or damaged."""

    origin: str  # the file or folder, for messages

    def names(self) -> list[str]:
        """Sorted."""
        ...

    def has(self, name: str) -> bool: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def get(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor, in dtype where given, else as stored (quantised ones as fp32).

        It may alias the mapped file: copy it before keeping it past ``close``.
        """
        ...

    def sample(self, name: str) -> bytes:
        """Shape, stored type and a few stored bytes spread over the tensor: cheap, for a fingerprint."""
        ...

    def close(self) -> None:
        """Unmaps the files."""
        ...


def spread(num_bytes: int, *, pieces: int = 8, piece_bytes: int = 64) -> list[slice]:
    """At most ``pieces`` byte ranges over [0, num_bytes), the first and the last bytes among them."""
    last = max(num_bytes - piece_bytes, 0)
    starts = sorted({last * i // (pieces - 1) for i in range(pieces)})
    return [slice(start, start + piece_bytes) for start in starts]
