"""StepGraphs: the target's forward captured for buckets of rows and nodes, replayed for every plan that fits one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from engine.graph_capture import Capture, Launch
from engine.plan import StepBuilder, StepPlan
from engine.pool import TargetCache
from engine.step_inputs import RowInputs, StepInputs, StepSize, StepTensors, capacity_for
from kernels.ops import AttentionBuffers, AttentionPlan

_ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512, 640, 768, 1024)
# Prompt chunks want few logits of many rows: 512 rows x 49152 tokens in fp32 would be 100 MB to write.
_FEW_NODES = (64, 256)


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Of one step, launched and perhaps not yet computed. Rank 0 holds them; elsewhere both are None.

    Of a replayed graph these are views of static tensors: valid until the next step.
    """

    logits: Tensor | None  # [nodes, V] fp32, in the order of the plan's trees
    features: Tensor | None  # [rows, Hd], None without a head


@dataclass(frozen=True, slots=True)
class LoadedStep:
    """A plan whose integers are on their way to the static inputs."""

    plan: StepPlan
    size: StepSize
    variant: int  # of the attention kernel
    tensors: StepTensors


Forward = Callable[[RowInputs, AttentionPlan], StepOutput]


def graph_sizes(max_rows: int) -> list[StepSize]:
    """The sizes to capture, the largest first: all nodes of a bucket of rows, and few nodes of many rows."""
    rows = [bucket for bucket in _ROWS if bucket < max_rows] + [max_rows]
    sizes = {StepSize(bucket, min(bucket, nodes)) for bucket in rows for nodes in (*_FEW_NODES, bucket)}
    return sorted(sizes, key=lambda size: (size.num_rows, size.num_nodes), reverse=True)


class StepGraphs:
    """Owns the static inputs and outputs of the graphs; all write to one cache.

    Padded rows write to the cache's spare slot, attend to nothing, and their results are cut off.
    """

    def __init__(self, forward: Forward, cache: TargetCache, attention: AttentionBuffers, *, capture: Capture) -> None:
        """Captures all, with a progress bar on a terminal. Plans within the limits of ``attention`` fit a graph."""
        self.cache = cache
        self._forward = forward
        self._attention = attention
        self._max_moves = attention.limits.max_rows
        self._sizes = graph_sizes(attention.limits.max_rows)
        capacity = capacity_for(self._sizes[0], num_moves=self._max_moves)
        self._inputs = StepInputs(capacity, spare_slot=cache.spare_slot, device=cache.k[0].device)
        self._outputs: StepOutput | None = None  # as large as those of the largest size, which runs first
        nothing = StepBuilder(cache.page_size).build()
        attention.load(nothing.attention)
        self._replays: dict[tuple[StepSize, int], Launch] = {}
        keys = [(size, variant) for size in self._sizes for variant in attention.variants]
        for size, variant in tqdm(keys, desc="CUDA graphs", unit="graph", disable=None):
            self._inputs.load(nothing, size)
            self._replays[size, variant] = capture(self._launch_of(size, variant))

    @property
    def num_graphs(self) -> int:
        return len(self._replays)

    def size_for(self, plan: StepPlan) -> StepSize | None:
        """The smallest size that holds the plan; None where the plan has to run eagerly."""
        limits, batch = self._attention.limits, plan.attention
        within = len(batch.prefix_len) <= limits.max_requests and len(batch.page_ids) <= limits.max_pages
        if batch.batch_invariant or not within or len(plan.move_src) > self._max_moves or plan.num_rows == 0:
            return None
        nodes = len(plan.logit_rows)
        fitting = (s for s in reversed(self._sizes) if s.num_rows >= plan.num_rows and s.num_nodes >= nodes)
        return next(fitting, None)

    def load(self, plan: StepPlan, size: StepSize) -> LoadedStep:
        """MUTATES the static inputs, in stream order. The moves among the result are the caller's to make."""
        tensors = self._inputs.load(plan, size)
        return LoadedStep(plan, size, self._attention.load(plan.attention), tensors)

    def replay(self, step: LoadedStep) -> StepOutput:
        """Launches what was loaded last. MUTATES the cache at its rows' slots, and the output of the step before."""
        self._replays[step.size, step.variant]()
        assert self._outputs is not None
        logits, features = self._outputs.logits, self._outputs.features
        return StepOutput(
            None if logits is None else logits[: len(step.plan.logit_rows)],
            None if features is None else features[: step.plan.num_rows],
        )

    def _launch_of(self, size: StepSize, variant: int) -> Launch:
        rows, attention = self._inputs.rows(size), self._attention.plan(size.num_rows, variant)

        def launch() -> None:
            output = self._forward(rows, attention)
            if self._outputs is None:
                self._outputs = StepOutput(_like(output.logits), _like(output.features))
            _copy(output.logits, self._outputs.logits)
            _copy(output.features, self._outputs.features)

        return launch


def _like(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else torch.empty_like(tensor)


def _copy(source: Tensor | None, target: Tensor | None) -> None:
    """Rows of a result to the first rows of its static tensor."""
    if source is not None and target is not None:
        target[: len(source)].copy_(source)
