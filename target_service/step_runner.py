"""StepRunner: one step of the model on all ranks, launched, and waited for later."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from engine.plan import StepPlan
from engine.pool import TargetCache
from engine.target_model import TargetModel
from engine.tp import TpGroup
from kernels.ops import Ops, PendingWalk, SamplingBatch, WalkResult
from target_service.feature_rows import FeatureRows
from target_service.step_timer import StepTimer, make_timer


@dataclass(frozen=True, slots=True)
class StepResult:
    """walk has one entry for each tree of the plan; the times are those of rank 0's device."""

    walk: WalkResult
    forward_ms: float
    sample_ms: float


class PendingStep:
    """A step that was launched. One at a time: ``result`` is to be asked before the next launch."""

    def __init__(self, walk: PendingWalk, timer: StepTimer) -> None:
        self._walk = walk
        self._timer = timer

    def result(self) -> StepResult:
        """Waits for the device. The arrays of the walk are the caller's."""
        walk = self._walk.result()
        forward_ms, sample_ms = self._timer.read_ms()
        return StepResult(walk, forward_ms, sample_ms)


class StepRunner:
    """Rank 0's model. Every rank steps with the plan that rank 0 broadcasts, an empty one included."""

    def __init__(self, model: TargetModel, cache: TargetCache, *, ops: Ops, tp: TpGroup) -> None:
        self._model = model
        self._cache = cache
        self._ops = ops
        self._tp = tp
        self._timer = make_timer(model.device)
        self.is_asynchronous = model.device.type == "cuda"  # whether ``launch`` returns before the step is computed
        self.features = FeatureRows(cache.features)

    def enter_thread(self) -> None:
        """To be called once by the thread that is going to launch: CUDA's current device is each thread's own."""
        device = self._model.device
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)

    def launch(self, plan: StepPlan, sampling: SamplingBatch, *, num_feature_rows: int = 0) -> PendingStep:
        """sampling: one entry for each tree of the plan. MUTATES the cache. Waits for no device but the CPU.

        ``features`` keeps the first num_feature_rows rows of the step.
        """
        self._timer.start()
        if self._tp.size > 1:
            self._tp.broadcast_plan(plan.pack())
        output = self._model.step(plan, self._cache)
        self._timer.forwarded()
        assert output.logits is not None
        walk = self._ops.start_walk(output.logits, plan.trees, sampling)
        self._timer.sampled()
        if num_feature_rows:
            self.features.copy_step(output.features, num_feature_rows)
        return PendingStep(walk, self._timer)

    def run(self, plan: StepPlan, sampling: SamplingBatch) -> StepResult:
        """Launches a step and waits for it."""
        return self.launch(plan, sampling).result()

    def stop(self) -> None:
        """Ends the other ranks' loops: an empty array is no plan."""
        self._tp.broadcast_plan(np.zeros(0, np.int64))
