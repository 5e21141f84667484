"""StepRunner: one step of the model on all ranks, and what the host reads back from it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.plan import StepBuilder, StepPlan
from engine.pool import TargetCache
from engine.sampling import sampling_batch
from engine.target_model import TargetModel
from engine.tp import TpGroup
from engine.wire import to_raw
from kernels.ops import Ops, WalkResult
from paceline.rounds import RawTensor
from paceline.types import SamplingParams


@dataclass(frozen=True, slots=True)
class StepResult:
    """walk has one entry for each tree of the plan; the times are those of rank 0."""

    walk: WalkResult
    forward_ms: float
    sample_ms: float


class FeatureRows:
    """The fused features in the target's pool, read by slot. row_bytes is 0 without a head."""

    def __init__(self, cache: TargetCache) -> None:
        self._pool = cache.features
        self.row_bytes = 0 if cache.features is None else cache.features.shape[1] * cache.features.itemsize

    def read(self, slots: np.ndarray) -> RawTensor:
        """slots: int64 [rows] -> [rows, feature_size] in the pool's dtype."""
        assert self._pool is not None, "features are read on a target without a head"
        index = torch.from_numpy(slots).to(self._pool.device)
        return to_raw(self._pool.index_select(0, index))


class StepRunner:
    """Rank 0's model. Every rank steps with the plan that rank 0 broadcasts, an empty one included."""

    def __init__(self, model: TargetModel, cache: TargetCache, *, ops: Ops, tp: TpGroup) -> None:
        self._model = model
        self._cache = cache
        self._ops = ops
        self._tp = tp
        self.features = FeatureRows(cache)

    def run(self, plan: StepPlan, params: Sequence[SamplingParams]) -> StepResult:
        """params: one entry for each tree of the plan. MUTATES the cache."""
        started = time.perf_counter()
        self._tp.broadcast_plan(plan.pack())
        output = self._model.step(plan, self._cache)
        forwarded = time.perf_counter()
        assert output.logits is not None
        walk = self._ops.start_walk(output.logits, plan.trees, sampling_batch(params)).result()
        sampled = time.perf_counter()
        return StepResult(walk, (forwarded - started) * 1e3, (sampled - forwarded) * 1e3)

    def keep_alive(self) -> None:
        """An empty step: the other ranks' wait for the next plan, which is long but bounded, starts anew."""
        self.run(StepBuilder(self._cache.page_size).build(), ())

    def stop(self) -> None:
        """Ends the other ranks' loops: an empty array is no plan."""
        self._tp.broadcast_plan(np.zeros(0, np.int64))
