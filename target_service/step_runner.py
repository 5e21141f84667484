"""StepRunner: one step of the model on all ranks, launched, and waited for later."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from engine.device import computing_on
from engine.plan import StepPlan
from engine.pool import TargetCache
from engine.step_graphs import StepOutput
from engine.tp import TpGroup
from kernels.ops import PendingWalk, SamplingBatch, TreeBatch, WalkResult
from target_service.feature_rows import CopiedRows, FeatureRows
from target_service.step_timer import StepTimer, make_timer

MAX_IN_FLIGHT = 2  # steps that may be launched and not known at once


class StepModel(Protocol):
    """A TargetModel, or one that is rehearsed with."""

    @property
    def device(self) -> torch.device: ...

    def step(
        self, plan: StepPlan, cache: TargetCache, *, drawn: Tensor | None, on_launch: Callable[[], None]
    ) -> StepOutput:
        """As ``TargetModel.step``."""
        ...


class Walks(Protocol):
    """Of Ops."""

    def start_walk(self, logits: Tensor, trees: TreeBatch, sampling: SamplingBatch) -> PendingWalk:
        """As ``Ops.start_walk``."""
        ...


@dataclass(frozen=True, slots=True)
class StepResult:
    """walk has one entry for each tree of the plan; the times are those of rank 0's device."""

    walk: WalkResult
    forward_ms: float
    sample_ms: float


class PendingStep:
    """A step that was launched. ``walk``, then ``result``, are asked for once, in the order of the launches."""

    def __init__(self, walk: PendingWalk, timer: StepTimer, features: CopiedRows) -> None:
        self._walk = walk
        self._timer = timer
        self._features = features

    def is_over(self) -> bool:
        """Whether ``walk`` would not wait."""
        return self._walk.is_ready() and self._timer.is_over()

    def first_tokens(self) -> Tensor:
        """[trees]: what each root drew, for the step that is launched next."""
        return self._walk.first_tokens()

    def walk(self) -> WalkResult:
        """Waits for the device. The arrays of the walk are the caller's; the runner's features are this step's now."""
        walk = self._walk.result()
        self._features.show()
        return walk

    def result(self, walk: WalkResult) -> StepResult:
        """With the device's times, which nobody needs before the drafts are asked. walk: what is left of the step's."""
        return StepResult(walk, *self._timer.read_ms())


class StepRunner:
    """Rank 0's model. Every rank steps with the plan that rank 0 broadcasts, an empty one included."""

    def __init__(self, model: StepModel, cache: TargetCache, *, ops: Walks, tp: TpGroup) -> None:
        self._model = model
        self._cache = cache
        self._ops = ops
        self._tp = tp
        self._timers = itertools.cycle([make_timer(model.device) for _ in range(MAX_IN_FLIGHT)])
        self.is_asynchronous = model.device.type == "cuda"  # whether ``launch`` returns before the step is computed
        self.features = FeatureRows(cache.features)

    def thread(self) -> AbstractContextManager[None]:
        """For the thread that is going to launch, as long as it does."""
        return computing_on(self._model.device)

    def launch(
        self,
        plan: StepPlan,
        sampling: SamplingBatch,
        *,
        num_feature_rows: int = 0,
        behind: PendingStep | None = None,
    ) -> PendingStep:
        """sampling: one entry for each tree of the plan. MUTATES the cache. Waits for no device but the CPU.

        At most MAX_IN_FLIGHT steps may be without a result. ``features`` keeps the first num_feature_rows rows of the
        step. behind: the last launched, where the plan has tokens that it is going to draw.
        """
        timer = next(self._timers)
        self.features.protect_reads()
        if self._tp.size > 1:
            self._tp.broadcast_plan(plan.pack())
        drawn = None if behind is None else behind.first_tokens()
        output = self._model.step(plan, self._cache, drawn=drawn, on_launch=timer.start)
        timer.forwarded()
        assert output.logits is not None
        walk = self._ops.start_walk(output.logits, plan.trees, sampling)
        timer.sampled()
        return PendingStep(walk, timer, self.features.copy_step(output.features, num_feature_rows))

    def run(self, plan: StepPlan, sampling: SamplingBatch) -> StepResult:
        """Launches a step and waits for it."""
        pending = self.launch(plan, sampling)
        return pending.result(pending.walk())

    def stop(self) -> None:
        """Ends the other ranks' loops: an empty array is no plan."""
        self._tp.broadcast_plan(np.zeros(0, np.int64))
