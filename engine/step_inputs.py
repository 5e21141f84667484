"""The integers of a step's rows and moves: on the device one static buffer, filled by an asynchronous copy a step."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from engine.plan import StepPlan
from kernels.step_trees import load_step_trees
from kernels.upload import Upload

_MAX_KEPT = 1024  # sizes
_ITEM = 8  # bytes of a value
_ALIGNMENT = 16  # int64 values, 128 bytes: kernels are compiled for aligned addresses


class StepSize(NamedTuple):
    """What a forward is shaped for. A tuple: a dataclass as a key calls two functions of Python a look-up."""

    num_rows: int
    num_nodes: int
    num_moves: int

    @classmethod
    def of(cls, plan: StepPlan) -> StepSize:
        return cls(plan.num_rows, len(plan.logit_rows), len(plan.move_src))

    def holds(self, other: StepSize) -> bool:
        """Whether a plan of the other size can be padded to this one."""
        fits = self.num_rows >= other.num_rows and self.num_nodes >= other.num_nodes
        return fits and self.num_moves >= other.num_moves

    @property
    def num_bytes(self) -> int:
        """Of a StepInputs of this size."""
        return _ITEM * _layout(self)[0][-1]


@dataclass(frozen=True, slots=True)
class StepTensors:
    """A StepPlan's integers, attention's apart."""

    tokens: Tensor  # [rows] int64
    positions: Tensor  # [rows] int64
    slots: Tensor  # [rows] int64
    logit_rows: Tensor  # [nodes] int64
    move_src: Tensor  # [moves] int64
    move_dst: Tensor  # [moves] int64


def host_tensors(plan: StepPlan) -> StepTensors:
    """Of a plan on the CPU: views of its arrays where these are int64, copies where they are not."""
    return StepTensors(*(torch.from_numpy(array).to(torch.int64) for array in _arrays(plan)))


class _Kept(NamedTuple):
    """What a StepSize alone decides."""

    tensors: StepTensors
    layout: np.ndarray  # int64 [3 a tensor]: start, length, padding
    first: int  # byte of the tensors


class StepInputs:
    """The first bytes of an Upload; for steps on one stream. They end where the upload's own user may go on.

    The tensors of a StepSize always lie at the same addresses, so that a graph may hold them. Padded rows have token
    0 and position 0 and write to spare_slot, padded nodes ask for row 0, and padded moves stay at spare_slot.
    """

    def __init__(self, upload: Upload, num_bytes: int, *, spare_slot: int) -> None:
        """upload: of bytes, a multiple of 8 of them. num_bytes: of the largest StepSize."""
        self.num_bytes = num_bytes
        self._upload = upload
        self._stages = [array.view(np.int64) for array in upload.arrays]
        self._paddings = (0, 0, 0, spare_slot, spare_slot, spare_slot)
        self._step_trees = load_step_trees()
        self._kept: dict[StepSize, _Kept] = {}

    @classmethod
    def alone(cls, num_bytes: int, *, spare_slot: int, device: torch.device) -> Self:
        """With an upload of their own."""
        return cls(Upload(num_bytes, torch.uint8, device), num_bytes, spare_slot=spare_slot)

    def tensors(self, size: StepSize) -> StepTensors:
        """Of every step of that size."""
        return self._of(size).tensors

    def load(self, plan: StepPlan, size: StepSize) -> None:
        """MUTATES the tensors of that size, and of others, as ``stage`` does."""
        self._upload.send(self.num_bytes, start=self.stage(plan, size))

    def stage(self, plan: StepPlan, size: StepSize) -> int:
        """Returns the first byte of the upload that is to be sent, up to num_bytes. Raises ValueError where the size
        does not hold the plan's.

        Waits only where the copy of two loads ago has not been made yet.
        """
        self._upload.stage()
        staged, kept = self._stages[self._upload.turn], self._of(size)
        narrow = plan.tokens, plan.positions, plan.logit_rows
        wide = plan.slots, plan.move_src, plan.move_dst
        if self._step_trees is not None:
            self._step_trees.stage(staged, kept.layout, narrow, wide)
        else:
            layout = kept.layout.reshape(-1, 3).tolist()
            for array, (start, length, padding) in zip((*narrow, *wide), layout, strict=True):
                if len(array) > length:
                    raise ValueError(f"{len(array)} values do not fit {length} places")
                staged[start : start + len(array)] = array
                staged[start + len(array) : start + length] = padding
        return kept.first

    def _of(self, size: StepSize) -> _Kept:
        """Made once: a slice of a tensor takes longer than a column's copy."""
        kept = self._kept.get(size)
        if kept is None:
            if len(self._kept) == _MAX_KEPT:
                self._kept.clear()
            first = self.num_bytes - size.num_bytes
            assert first >= 0, "the buffer is for smaller steps"
            (*offsets, _), lengths = _layout(size)
            starts = [first // _ITEM + offset for offset in offsets]
            values = self._upload.tensor[: self.num_bytes].view(torch.int64)
            parts = [values[start : start + length] for start, length in zip(starts, lengths, strict=True)]
            tokens, positions, logit_rows, slots, move_src, move_dst = parts
            tensors = StepTensors(tokens, positions, slots, logit_rows, move_src, move_dst)
            layout = np.array(list(zip(starts, lengths, self._paddings, strict=True)), np.int64).reshape(-1)
            kept = self._kept[size] = _Kept(tensors, layout, first)
        return kept


def _arrays(plan: StepPlan) -> tuple[np.ndarray, ...]:
    return plan.tokens, plan.positions, plan.slots, plan.logit_rows, plan.move_src, plan.move_dst


@lru_cache(maxsize=1024)
def _layout(size: StepSize) -> tuple[Sequence[int], Sequence[int]]:
    """Start of each tensor in the buffer, and the last one's end; lengths: tokens, positions, logit rows, slots,
    moves."""
    lengths = [size.num_rows] * 2 + [size.num_nodes, size.num_rows] + [size.num_moves] * 2
    aligned = [-(-length // _ALIGNMENT) * _ALIGNMENT for length in lengths]
    return list(itertools.accumulate(aligned, initial=0)), lengths
