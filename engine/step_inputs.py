"""The integers of a step's rows and moves: on the device one static buffer, filled by one asynchronous copy a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.plan import StepPlan
from kernels.step_trees import load_step_trees
from kernels.upload import Upload

_MAX_KEPT = 1024  # sizes
_ALIGNMENT = 16  # int64 values, 128 bytes: kernels are compiled for aligned addresses


@dataclass(frozen=True, slots=True)
class StepSize:
    """What a forward is shaped for."""

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
    def num_values(self) -> int:
        """int64 values of a StepInputs of this size."""
        starts, lengths = _layout(self)
        return starts[-1] + lengths[-1]


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
    num_values: int  # of all tensors


class StepInputs:
    """A static buffer on the device, loaded through pinned memory; for steps on one stream.

    The tensors of a StepSize always lie at the same addresses, so that a graph may hold them. Padded rows have token
    0 and position 0 and write to spare_slot, padded nodes ask for row 0, and padded moves stay at spare_slot.
    """

    def __init__(self, num_values: int, *, spare_slot: int, device: torch.device) -> None:
        """num_values: of the largest StepSize."""
        self.num_values = num_values
        self._upload = Upload(num_values, torch.int64, device)
        self._paddings = (0, 0, 0, spare_slot, spare_slot, spare_slot)
        self._step_trees = load_step_trees()
        self._kept: dict[StepSize, _Kept] = {}

    def tensors(self, size: StepSize) -> StepTensors:
        """Of every step of that size."""
        return self._of(size).tensors

    def load(self, plan: StepPlan, size: StepSize) -> None:
        """MUTATES the tensors of that size, and of others. Raises ValueError where the size does not hold the plan's.

        Waits only where the copy of two loads ago has not been made yet.
        """
        staged, kept = self._upload.stage(), self._of(size)
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
        self._upload.send(kept.num_values)

    def _of(self, size: StepSize) -> _Kept:
        """Made once: a slice of a tensor takes longer than a column's copy."""
        kept = self._kept.get(size)
        if kept is None:
            if len(self._kept) == _MAX_KEPT:
                self._kept.clear()
            starts, lengths = _layout(size)
            num_values = size.num_values
            assert num_values <= self.num_values, "the buffer is for smaller steps"
            parts = [self._upload.tensor[start : start + length] for start, length in zip(starts, lengths, strict=True)]
            tokens, positions, logit_rows, slots, move_src, move_dst = parts
            tensors = StepTensors(tokens, positions, slots, logit_rows, move_src, move_dst)
            layout = np.array(list(zip(starts, lengths, self._paddings, strict=True)), np.int64).reshape(-1)
            kept = self._kept[size] = _Kept(tensors, layout, num_values)
        return kept


def _arrays(plan: StepPlan) -> tuple[np.ndarray, ...]:
    return plan.tokens, plan.positions, plan.slots, plan.logit_rows, plan.move_src, plan.move_dst


@lru_cache(maxsize=1024)
def _layout(size: StepSize) -> tuple[Sequence[int], Sequence[int]]:
    """Start and length of each tensor in the buffer: tokens, positions, logit rows, slots, moves."""
    lengths = [size.num_rows] * 2 + [size.num_nodes, size.num_rows] + [size.num_moves] * 2
    starts, at = [], 0
    for length in lengths:
        starts.append(at)
        at += -(-length // _ALIGNMENT) * _ALIGNMENT
    return starts, lengths
