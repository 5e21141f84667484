"""A target whose model only waits: what ``bench.host_path`` and ``bench.host_round`` put under the real decode loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from engine.plan import StepPlan
from engine.pool import TargetCache
from engine.step_graphs import StepOutput
from engine.tp import TpGroup
from kernels.ops import PendingWalk, SamplingBatch, TreeBatch, WalkLimits, WalkResult
from kernels.reference.walk import FinishedWalk
from target_service.loading import LoadedRank

VOCAB_SIZE = 49152
PAGE_SIZE = 16
ACCEPTED_PATH = (0, 1, 4)  # of every tree of more nodes, so that KV moves
NEXT_TOKEN = 7  # that every walk ends with


@dataclass(slots=True)
class Stamps:
    """When the loop launched each step, and when it learnt its result: seconds of its thread's CPU by ``now_s``."""

    launched_s: list[float] = field(default_factory=list)
    known_s: list[float] = field(default_factory=list)
    outside_s: float = 0.0  # what the thread spent on other work than the loop's

    def now_s(self) -> float:
        return time.thread_time() - self.outside_s


def wait_until(due_s: float, *, sleeps: bool = True) -> None:
    """On the monotonic clock."""
    left_s = due_s - time.monotonic()
    if left_s > 0 and sleeps:
        time.sleep(left_s)
    while time.monotonic() < due_s:
        time.sleep(0)  # without the interpreter's lock


class _KnownWalk:
    def __init__(self, walk: WalkResult, stamps: Stamps, due_s: float, *, sleeps: bool) -> None:
        self._walk = walk
        self._stamps = stamps
        self._due_s = due_s
        self._sleeps = sleeps

    def is_ready(self) -> bool:
        return time.monotonic() >= self._due_s

    def result(self) -> WalkResult:
        wait_until(self._due_s, sleeps=self._sleeps)
        self._stamps.known_s.append(self._stamps.now_s())
        return self._walk

    def first_tokens(self) -> torch.Tensor:
        counts = self._walk.accept_length + 1
        return torch.from_numpy(self._walk.verified_id[counts.cumsum() - counts])


class InstantOps:
    """Only what the loop itself asks of the ops. Every tree accepts ACCEPTED_PATH, or nothing where it is too small.

    A walk is known step_s after it was started, or after the one before is known where that is later. sleeps: who waits
    for it does.
    """

    def __init__(self, stamps: Stamps, *, step_s: float, sleeps: bool = True) -> None:
        self._stamps = stamps
        self._step_s = step_s
        self._sleeps = sleeps
        self._free_s = 0.0  # when the last one is over

    def prepare_walk(self, limits: WalkLimits) -> None:
        """There is nothing to prepare."""

    def start_walk(self, logits: torch.Tensor, trees: TreeBatch, sampling: SamplingBatch) -> _KnownWalk:
        due_s = self._free_s = max(time.monotonic(), self._free_s) + self._step_s
        starts = trees.node_indptr[:-1]
        accepts = np.diff(trees.node_indptr) > ACCEPTED_PATH[-1]
        accept_length = np.where(accepts, len(ACCEPTED_PATH) - 1, 0).astype(np.int32)
        ends = np.cumsum(accept_length + 1)
        depth = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - accept_length - 1, accept_length + 1)
        path = np.repeat(starts, accept_length + 1) + np.array(ACCEPTED_PATH)[depth]
        verified = np.full(len(path), NEXT_TOKEN, np.int32)
        last = np.zeros(len(path), np.bool_)
        last[ends - 1] = True
        verified[~last] = trees.tokens[path[np.flatnonzero(~last) + 1]]
        walk = WalkResult(accept_length, path.astype(np.int32), verified)
        return _KnownWalk(walk, self._stamps, due_s, sleeps=self._sleeps)

    def known_walk(self, trees: TreeBatch, walk: WalkResult) -> PendingWalk:
        """For rehearsals."""
        return FinishedWalk(walk)


class InstantModel:
    """Gives the same features in every step, and no logits."""

    def __init__(self, stamps: Stamps, *, feature_size: int, max_rows: int) -> None:
        self.config: Any = SimpleNamespace(vocab_size=VOCAB_SIZE, eos_token_ids=(2,))
        self.device = torch.device("cpu")
        self._stamps = stamps
        self._logits = torch.zeros(0, VOCAB_SIZE)
        self._features = torch.zeros(max_rows, feature_size, dtype=torch.bfloat16) if feature_size else None

    def step(
        self,
        plan: StepPlan,
        cache: TargetCache,
        *,
        drawn: torch.Tensor | None = None,
        on_launch: Callable[[], None] = lambda: None,
    ) -> StepOutput:
        on_launch()
        self._stamps.launched_s.append(self._stamps.now_s())
        features = None if self._features is None else self._features[: plan.num_rows]
        return StepOutput(self._logits, features)

    def rehearse(self, plan: StepPlan, cache: TargetCache) -> None:
        """As a step: there are no tables."""


def instant_rank(
    stamps: Stamps, *, num_pages: int, feature_size: int, max_rows: int, step_s: float = 0.0, sleeps: bool = True
) -> LoadedRank:
    """feature_size 0: without a head. step_s: from the launch of a step to its result. sleeps: see InstantOps."""
    features = torch.zeros(num_pages * PAGE_SIZE, feature_size, dtype=torch.bfloat16) if feature_size else None
    cache = TargetCache((), (), features, num_pages, PAGE_SIZE)
    model: Any = InstantModel(stamps, feature_size=feature_size, max_rows=max_rows)
    ops: Any = InstantOps(stamps, step_s=step_s, sleeps=sleeps)
    return LoadedRank(model, cache, ops, TpGroup())
