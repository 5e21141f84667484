"""The integers of a step's rows on the device: one packed, pinned, asynchronous copy a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.plan import StepPlan

_ALIGNMENT = 16  # int64 values, 128 bytes: kernels are compiled for aligned addresses


@dataclass(frozen=True, slots=True)
class StepSize:
    """Rows and nodes that a forward is shaped for."""

    num_rows: int
    num_nodes: int


@dataclass(frozen=True, slots=True)
class RowInputs:
    """What the forward takes of each row."""

    tokens: Tensor  # [rows] int64
    positions: Tensor  # [rows] int64
    slots: Tensor  # [rows] int64
    logit_rows: Tensor  # [nodes] int64


@dataclass(frozen=True, slots=True)
class StepTensors:
    """All integers of a step but those of attention."""

    rows: RowInputs
    move_src: Tensor  # [moves] int64
    move_dst: Tensor  # [moves] int64


def host_tensors(plan: StepPlan) -> StepTensors:
    """Of a plan on the CPU: views of its arrays where these are int64, copies where they are not."""
    arrays = (plan.tokens, plan.positions, plan.slots, plan.logit_rows, plan.move_src, plan.move_dst)
    tokens, positions, slots, logit_rows, src, dst = (torch.from_numpy(array).to(torch.int64) for array in arrays)
    return StepTensors(RowInputs(tokens, positions, slots, logit_rows), src, dst)


class StepInputs:
    """A static buffer on the device and two staging buffers on the host, pinned where the device is CUDA.

    The tensors of a StepSize always lie at the same addresses, so that a graph may hold them. Padded rows have token
    0 and position 0 and write to spare_slot; padded nodes ask for row 0. Steps on one stream.
    """

    def __init__(self, capacity: int, *, spare_slot: int, device: torch.device) -> None:
        """capacity: int64 values, as ``capacity_for`` counts them."""
        is_cuda = device.type == "cuda"
        self.capacity = capacity
        self._spare_slot = spare_slot
        self._buffer = torch.zeros(capacity, dtype=torch.int64, device=device)
        self._staging = [torch.zeros(capacity, dtype=torch.int64, pin_memory=is_cuda) for _ in range(2)]
        self._arrays = [staging.numpy() for staging in self._staging]
        self._device = device
        self._copied = [torch.cuda.Event() for _ in range(2)] if is_cuda else []
        self._turn = 0

    def rows(self, size: StepSize) -> RowInputs:
        """The tensors of every step of that size."""
        starts = _starts(_row_lengths(size))
        return RowInputs(*(self._buffer[a : a + n] for a, n in zip(starts, _row_lengths(size), strict=True)))

    def load(self, plan: StepPlan, size: StepSize) -> StepTensors:
        """MUTATES the tensors of the step before. The plan must fit the size, and its moves the capacity.

        Waits only where the copy of two steps ago has not been made yet.
        """
        rows, num_moves = plan.num_rows, len(plan.move_src)
        lengths = [*_row_lengths(size), num_moves, num_moves]
        tokens, positions, slots, logit_rows, src, dst = starts = _starts(lengths)
        total = dst + num_moves
        assert rows <= size.num_rows and len(plan.logit_rows) <= size.num_nodes and total <= self.capacity
        self._turn = 1 - self._turn
        if self._copied:
            self._copied[self._turn].synchronize()
        packed = self._arrays[self._turn]
        _fill(packed[tokens:positions], plan.tokens, padding=0)
        _fill(packed[positions:slots], plan.positions, padding=0)
        _fill(packed[slots:logit_rows], plan.slots, padding=self._spare_slot)
        _fill(packed[logit_rows:src], plan.logit_rows, padding=0)
        _fill(packed[src:dst], plan.move_src, padding=0)
        packed[dst:total] = plan.move_dst
        self._buffer[:total].copy_(self._staging[self._turn][:total], non_blocking=True)
        if self._copied:
            self._copied[self._turn].record(torch.cuda.current_stream(self._device))
        parts = [self._buffer[start : start + length] for start, length in zip(starts, lengths, strict=True)]
        return StepTensors(RowInputs(*parts[:4]), *parts[4:])


def capacity_for(size: StepSize, *, num_moves: int) -> int:
    """int64 values that a StepInputs needs for steps of up to that size, with up to that many moves."""
    return _starts([*_row_lengths(size), num_moves, num_moves])[-1] + num_moves


def _row_lengths(size: StepSize) -> list[int]:
    return [size.num_rows, size.num_rows, size.num_rows, size.num_nodes]


def _starts(lengths: Sequence[int]) -> list[int]:
    padded = [-(-length // _ALIGNMENT) * _ALIGNMENT for length in lengths[:-1]]
    return [0, *np.cumsum(padded).tolist()]


def _fill(part: np.ndarray, values: np.ndarray, *, padding: int) -> None:
    part[: len(values)] = values
    part[len(values) :] = padding
