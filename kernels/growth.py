"""GrowingTrees: the tensors of proposal trees that grow on the device, a level at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class GrowthShape:
    """The largest tree that a growth is laid out for; paceline.types.TreeShape says what is allowed."""

    num_steps: int
    topk: int
    num_nodes: int  # with the root

    @property
    def num_candidates(self) -> int:
        return self.topk + (self.num_steps - 1) * self.topk**2

    @property
    def num_scratch(self) -> int:
        """Beam nodes that go through the head; at most 64."""
        return (self.num_steps - 1) * self.topk

    def first_of(self, level: int) -> int:
        """The index of a level's first candidate."""
        return 0 if level == 0 else self.topk + (level - 1) * self.topk**2


@dataclass(frozen=True, slots=True)
class GrowthInputs:
    """What the host knows of b sessions before their trees grow. Each may want less than the GrowthShape."""

    num_steps: Tensor  # [b] int64
    topk: Tensor  # [b] int64
    num_nodes: Tensor  # [b] int64, with the root
    min_score: Tensor  # [b] fp64: log-probability of a path below which a candidate is never chosen
    roots: Tensor  # [b] int64: the root's token
    committed_len: Tensor  # [b] int64: the root's position
    scratch_slots: Tensor  # [num_scratch, b] int64: the slot of each beam node, in the order of levels and places
    target_ids: Tensor  # [draft vocabulary] int64: the target's id of each draft id


@dataclass(frozen=True, slots=True)
class BeamRows:
    """What the next head forward consumes. Row session * topk + place; the tensors may be longer."""

    tokens: Tensor  # [b * topk] int64
    parent_rows: Tensor  # [b * topk] int64: whose hidden state each takes, a row of the forward before
    positions: Tensor  # [b * topk] int64
    slots: Tensor  # [b * topk] int64
    ancestors: Tensor  # [b * topk] int64 bit patterns: the scratch nodes on its path, itself included
    local_len: Tensor  # [b] int32: scratch nodes with the beam's


@dataclass(frozen=True, slots=True)
class Candidates:
    """All candidates of all levels, C = num_candidates, and what each beam was made of."""

    scores: Tensor  # [b, C] fp32: log-probability of the path, -inf where the head gave no finite one
    tokens: Tensor  # [b, C] int32 target ids
    parents: Tensor  # [b, C] int32: a candidate's index, -1 for the root
    beams: Tensor  # [num_steps, b, topk] int32: the candidate of each beam node
    paths: Tensor  # [num_steps, b, topk] int64: the ancestors of each beam node
    places: Tensor  # [b, C] int32: scratch of the final choice

    @classmethod
    def allocate(cls, shape: GrowthShape, num_sessions: int, device: torch.device) -> Self:
        """Of any content."""
        per_candidate = (num_sessions, shape.num_candidates)
        per_node = (shape.num_steps, num_sessions, shape.topk)
        return cls(
            scores=torch.empty(per_candidate, dtype=torch.float32, device=device),
            tokens=torch.empty(per_candidate, dtype=torch.int32, device=device),
            parents=torch.empty(per_candidate, dtype=torch.int32, device=device),
            beams=torch.empty(per_node, dtype=torch.int32, device=device),
            paths=torch.empty(per_node, dtype=torch.int64, device=device),
            places=torch.empty(per_candidate, dtype=torch.int32, device=device),
        )


@dataclass(frozen=True, slots=True)
class GrowingTrees:
    """b trees within one shape. ``Ops.grow_beam`` fills them level by level, ``Ops.choose_nodes`` ends the growth.

    nodes: [b, 1 + 2 n] int32, n = shape.num_nodes: the number of nodes, then n tokens and n parents, root first.
    """

    shape: GrowthShape
    inputs: GrowthInputs
    rows: BeamRows
    candidates: Candidates
    nodes: Tensor

    @classmethod
    def allocate(cls, shape: GrowthShape, inputs: GrowthInputs, rows: BeamRows) -> Self:
        """What the growth of len(inputs.roots) trees needs beside its inputs and the rows of its beams."""
        num_sessions, device = len(inputs.roots), inputs.roots.device
        nodes = torch.empty((num_sessions, 1 + 2 * shape.num_nodes), dtype=torch.int32, device=device)
        return cls(shape, inputs, rows, Candidates.allocate(shape, num_sessions, device), nodes)

    @property
    def num_sessions(self) -> int:
        return len(self.inputs.roots)
