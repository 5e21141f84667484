"""A step without its forward: what rehearsals put under the decode loop."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from engine.plan import StepPlan
from engine.pool import TargetCache
from engine.step_graphs import StepOutput
from kernels.ops import Ops, PendingWalk, SamplingBatch, TreeBatch, WalkResult
from target_service.loading import LoadedRank

_PATH = np.array((0, 1, 4), np.int32)  # of every tree of more nodes: not in order, so that KV moves


class RehearsedModel:
    """StepModel: a step's tables go to the rank's device, and no step is launched."""

    device = torch.device("cpu")  # where its features are

    def __init__(self, rank: LoadedRank, features: Tensor) -> None:
        """features: [rows, Hd], on the host, at least as many as a step has."""
        self._model = rank.model
        self._cache = rank.cache
        self._output = StepOutput(torch.zeros(0, rank.model.config.vocab_size), features)

    def step(
        self, plan: StepPlan, cache: TargetCache, *, drawn: Tensor | None, on_launch: Callable[[], None]
    ) -> StepOutput:
        """As ``TargetModel.step``, of the first steps of one request alone."""
        self._model.rehearse(plan, self._cache)
        on_launch()
        return self._output


class RehearsedWalks:
    """Walks of one tree each that are over at once."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops

    def start_walk(self, logits: Tensor, trees: TreeBatch, sampling: SamplingBatch) -> PendingWalk:
        path = _PATH if len(trees.tokens) > _PATH[-1] else _PATH[:1]
        return self._ops.known_walk(trees, WalkResult(np.array([len(path) - 1], np.int32), path, trees.tokens[path]))
