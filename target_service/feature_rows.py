"""FeatureRows: fused features on their way from the device to the drafts' messages."""

from __future__ import annotations

import itertools
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from engine.wire import dtype_name
from paceline.rounds import RawTensor

MAX_COPIED_BYTES = 4 << 20  # of one step's rows: some 0.1 ms on the way to the host
_NUM_COPIES = 3  # the step that is shown, and two that may be on their way


class FeatureRows:
    """Reads rows of the last step that is known from a copy on the host, and older ones from the pool. Engine thread
    only.

    No read waits for a step that is launched after it, nor, on a GPU, for one that was launched before and is not known
    yet: pool rows are read beside it, on a stream of their own. So they must not be rows that it writes or moves.
    row_bytes is 0 without a head, and then nothing is read.
    """

    def __init__(self, pool: Tensor | None) -> None:
        """pool: [slots, feature_size], or None without a head."""
        self.row_bytes = 0 if pool is None else pool.shape[1] * pool.itemsize
        self.num_copied = 0  # rows of the last known step that are here
        if pool is None:
            return
        self._pool = pool
        self.dtype, self.feature_size = dtype_name(pool.dtype), pool.shape[1]
        num_rows = max(1, MAX_COPIED_BYTES // self.row_bytes)
        self._copies = itertools.cycle([_Staging(pool, num_rows=num_rows) for _ in range(_NUM_COPIES)])
        self._shown: _Staging | None = None
        self._reads = _Staging(pool, num_rows=2 * num_rows)
        self._reader = torch.cuda.Stream(pool.device, priority=-1) if pool.device.type == "cuda" else None
        self._is_reading = False

    def copy_step(self, features: Tensor | None, num_rows: int) -> CopiedRows:
        """Copies the first num_rows rows of a step's features, or as many as there is room for.

        features: [rows, feature_size], valid until the next step.
        """
        if features is None or not num_rows:
            return CopiedRows(self, None, 0)
        copy = next(self._copies)
        num_rows = min(num_rows, copy.num_rows)
        copy.fetch(features[:num_rows])
        return CopiedRows(self, copy, num_rows)

    def show(self, copy: _Staging | None, num_rows: int) -> None:
        """That step is known now: its rows are those of ``of_step``."""
        self._shown, self.num_copied = copy, num_rows

    def of_step(self, rows: list[int]) -> list[bytes | memoryview]:
        """The bytes of the rows, end to end, as they lie: until two more steps were launched. rows: each below
        num_copied. Waits for the copy, which follows the step's own result."""
        assert self._shown is not None, "no rows of the last step were copied"
        return _runs(self._shown.wait_flat(), rows, self.row_bytes)

    def start_read(self, slots: np.ndarray) -> None:
        """Orders a copy of the pool's rows at slots, int64 [n]; ``finish_read`` takes it before another is started."""
        assert not self._is_reading, "rows were read and not taken"
        self._is_reading = True
        if len(slots) > self._reads.num_rows:
            self._reads = _Staging(self._pool, num_rows=2 * len(slots))
        with torch.cuda.stream(self._reader):  # on the CPU, of none: does nothing
            self._reads.fetch(self._pool.index_select(0, self._reads.upload(slots)))

    def protect_reads(self) -> None:
        """Before a step is launched: it begins when the device has read what was ordered."""
        if self.row_bytes and self._is_reading:
            self._reads.precede_current_stream()

    def finish_read(self, indptr: np.ndarray) -> list[RawTensor]:
        """The rows [indptr[i], indptr[i + 1]) of the read, for each i. Waits for the copy."""
        self._is_reading = False
        rows = self._reads.wait()
        stops = indptr.tolist()
        return [self._raw(rows[start:stop]) for start, stop in pairwise(stops)]

    def _raw(self, rows: np.ndarray) -> RawTensor:
        return RawTensor(self.dtype, (len(rows), self.feature_size), rows.tobytes())


class CopiedRows:
    """The copy of one step's first rows, until the step is known."""

    def __init__(self, features: FeatureRows, copy: _Staging | None, num_rows: int) -> None:
        self._features = features
        self._copy = copy
        self._num_rows = num_rows

    def show(self) -> None:
        """The step is known."""
        self._features.show(self._copy, self._num_rows)


class _Staging:
    """Host memory that rows are copied to in the current stream; on the CPU the rows themselves."""

    def __init__(self, pool: Tensor, *, num_rows: int) -> None:
        self.num_rows = num_rows
        self._show(pool[:0].cpu())
        self._event: torch.cuda.Event | None = None
        if pool.device.type == "cuda":
            self._event = torch.cuda.Event()
            self._pinned = torch.empty(num_rows, pool.shape[1], dtype=pool.dtype, pin_memory=True)
            self._show(self._pinned)
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
            self._show(rows)
        else:
            self._pinned[: len(rows)].copy_(rows, non_blocking=True)
            self._event.record()

    def precede_current_stream(self) -> None:
        """What is launched next waits, on the device, for what was fetched last."""
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)

    def wait(self) -> np.ndarray:
        """uint8 [rows, row_bytes]: what was fetched last, valid until the next ``fetch``."""
        if self._event is not None:
            self._event.synchronize()
        return self._host

    def wait_flat(self) -> memoryview:
        """The same in one dimension."""
        if self._event is not None:
            self._event.synchronize()
        return self._flat

    def _show(self, rows: Tensor) -> None:
        """On the host."""
        self._host: np.ndarray = rows.detach().contiguous().view(torch.uint8).numpy()
        self._flat = self._host.reshape(-1).data


def _runs(held: memoryview, rows: list[int], row_bytes: int) -> list[bytes | memoryview]:
    """The bytes of the rows, those that follow each other in one piece."""
    runs: list[bytes | memoryview] = []
    if not rows:
        return runs
    start = stop = rows[0]
    for row in rows:
        if row != stop:
            runs.append(held[start * row_bytes : stop * row_bytes])
            start = row
        stop = row + 1
    runs.append(held[start * row_bytes : stop * row_bytes])
    return runs
