"""FeatureRows: fused features on their way from the device to the drafts' messages."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from engine.wire import dtype_name
from paceline.rounds import RawTensor

MAX_COPIED_BYTES = 4 << 20  # of one step's rows: some 0.1 ms on the way to the host


class FeatureRows:
    """Reads rows of the last step from a copy on the host, and older ones from the pool. Engine thread only.

    No read waits for a step that is launched after it. row_bytes is 0 without a head, and then nothing is read.
    """

    def __init__(self, pool: Tensor | None) -> None:
        """pool: [slots, feature_size], or None without a head."""
        self.row_bytes = 0 if pool is None else pool.shape[1] * pool.itemsize
        self.num_copied = 0  # rows of the last step that are here
        if pool is None:
            return
        self._pool = pool
        self._dtype = dtype_name(pool.dtype)
        num_rows = max(1, MAX_COPIED_BYTES // self.row_bytes)
        self._last_step = _Staging(pool, num_rows=num_rows)
        self._reads = _Staging(pool, num_rows=2 * num_rows)
        self._is_reading = False

    def copy_step(self, features: Tensor | None, num_rows: int) -> None:
        """Keeps the first num_rows rows of a step's features, or as many as there is room for.

        features: [rows, feature_size], valid until the next step.
        """
        if features is None:
            return
        self.num_copied = min(num_rows, self._last_step.num_rows)
        self._last_step.fetch(features[: self.num_copied])

    def of_step(self, rows: np.ndarray) -> RawTensor:
        """rows: int [n], each below num_copied. Waits for the copy, which follows the step's own result."""
        return self._raw(self._last_step.wait()[rows])

    def start_read(self, slots: np.ndarray) -> None:
        """Orders a copy of the pool's rows at slots, int64 [n]; ``finish_read`` takes it before another is started."""
        assert not self._is_reading, "rows were read and not taken"
        self._is_reading = True
        if len(slots) > self._reads.num_rows:
            self._reads = _Staging(self._pool, num_rows=2 * len(slots))
        self._reads.fetch(self._pool.index_select(0, self._reads.upload(slots)))

    def finish_read(self, indptr: np.ndarray) -> list[RawTensor]:
        """The rows [indptr[i], indptr[i + 1]) of the read, for each i. Waits for the copy."""
        self._is_reading = False
        rows = self._reads.wait()
        stops = indptr.tolist()
        return [self._raw(rows[start:stop]) for start, stop in pairwise(stops)]

    def _raw(self, rows: np.ndarray) -> RawTensor:
        return RawTensor(self._dtype, (len(rows), self._pool.shape[1]), rows.tobytes())


class _Staging:
    """Host memory that rows are copied to in the current stream; on the CPU the rows themselves."""

    def __init__(self, pool: Tensor, *, num_rows: int) -> None:
        self.num_rows = num_rows
        self._host = _as_bytes(pool[:0].cpu())
        self._event: torch.cuda.Event | None = None
        if pool.device.type == "cuda":
            self._event = torch.cuda.Event()
            self._pinned = torch.empty(num_rows, pool.shape[1], dtype=pool.dtype, pin_memory=True)
            self._host = _as_bytes(self._pinned)
            self._pinned_slots = torch.empty(num_rows, dtype=torch.int64, pin_memory=True)
            self._slots = torch.empty(num_rows, dtype=torch.int64, device=pool.device)

    def upload(self, slots: np.ndarray) -> Tensor:
        """int64 [n], at most num_rows, on the pool's device. What was fetched last must have been waited for."""
        index = torch.from_numpy(slots)
        if self._event is None:
            return index
        self._pinned_slots[: len(slots)] = index
        return self._slots[: len(slots)].copy_(self._pinned_slots[: len(slots)], non_blocking=True)

    def fetch(self, rows: Tensor) -> None:
        """rows: at most num_rows, on the pool's device."""
        if self._event is None:
            self._host = _as_bytes(rows)
        else:
            self._pinned[: len(rows)].copy_(rows, non_blocking=True)
            self._event.record()

    def wait(self) -> np.ndarray:
        """uint8 [rows, row_bytes]: what was fetched last, valid until the next ``fetch``."""
        if self._event is not None:
            self._event.synchronize()
        return self._host


def _as_bytes(rows: Tensor) -> np.ndarray:
    array: np.ndarray = rows.detach().contiguous().view(torch.uint8).numpy()
    return array
