"""StepGraphs: the target's forward captured for buckets of rows and nodes, replayed for every plan that fits one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.graph_capture import Capture, Launch, capture_bar
from engine.plan import StepBuilder, StepPlan
from engine.pool import TargetCache
from engine.step_inputs import StepInputs, StepSize, StepTensors
from kernels.ops import AttentionBuffers, AttentionPlan

_ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024)
# Prompt chunks want few logits of many rows: 512 rows x 49152 tokens in fp32 would be 100 MB to write.
_FEW_NODES = (64, 256)
_MAX_FITS = 4096  # steps' sizes whose graph is remembered


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Of one step, launched and perhaps not yet computed. Rank 0 holds them; elsewhere both are None.

    Of a replayed graph these are views of static tensors: valid until the next step.
    """

    logits: Tensor | None  # [nodes, V] fp32, in the order of the plan's trees
    features: Tensor | None  # [rows, Hd], None without a head


Forward = Callable[[StepTensors, AttentionPlan], StepOutput]


def graph_sizes(max_rows: int) -> list[StepSize]:
    """The sizes to capture, the largest first: all nodes of a bucket of rows, and few nodes of many rows.

    The accepted path that a step moves is seldom longer than the step; where it is, a larger bucket takes it.
    """
    rows = [bucket for bucket in _ROWS if bucket < max_rows] + [max_rows]
    sizes = {(bucket, min(bucket, nodes)) for bucket in rows for nodes in (*_FEW_NODES, bucket)}
    return [StepSize(bucket, nodes, bucket) for bucket, nodes in sorted(sizes, reverse=True)]


def num_input_bytes(max_rows: int) -> int:
    """Of the graphs' static inputs, attention's tables apart."""
    return graph_sizes(max_rows)[0].num_bytes


class StepGraphs:
    """Owns the static inputs and outputs of the graphs; all write to one cache.

    Padded rows write to the cache's spare slot, attend to nothing, and their results are cut off.
    """

    def __init__(self, forward: Forward, cache: TargetCache, attention: AttentionBuffers, *, capture: Capture) -> None:
        """Captures all, with a progress bar on a terminal. Plans within the limits of ``attention`` fit a graph, which
        has ``num_input_bytes`` ahead."""
        self.cache = cache
        self._forward = forward
        self._attention = attention
        self._sizes = graph_sizes(attention.limits.max_rows)
        self._inputs = StepInputs(
            attention.ahead, num_input_bytes(attention.limits.max_rows), spare_slot=cache.spare_slot
        )
        self._fits: dict[StepSize, StepSize | None] = {}
        self._outputs: StepOutput | None = None  # as large as those of the largest size, which runs first
        nothing = StepBuilder(cache.page_size).build()
        attention.load(nothing.attention)
        self._replays: dict[tuple[StepSize, int], Launch] = {}
        keys = [(size, variant) for size in self._sizes for variant in self._variants(size)]
        with capture_bar(len(keys)) as bar:
            for size, variant in keys:
                self._inputs.load(nothing, size)
                self._replays[size, variant] = capture(self._launch_of(size, variant))
                bar.update()
        self._smallest = capture(self._clear_spare)

    def size_for(self, plan: StepPlan) -> StepSize | None:
        """The smallest size that holds the plan; None where the plan has to run eagerly."""
        limits, batch = self._attention.limits, plan.attention
        within = len(batch.prefix_len) <= limits.max_requests and len(batch.page_ids) <= limits.max_pages
        if batch.batch_invariant or not within or plan.num_rows == 0:
            return None
        wanted = StepSize.of(plan)
        if wanted not in self._fits:
            if len(self._fits) == _MAX_FITS:
                self._fits.clear()
            self._fits[wanted] = next((size for size in reversed(self._sizes) if size.holds(wanted)), None)
        return self._fits[wanted]

    def load(self, plan: StepPlan, size: StepSize) -> int:
        """What ``run`` does first. MUTATES what the graphs read, in stream order. Returns attention's variant."""
        variants = self._variants(size)
        start = self._inputs.stage(plan, size)
        return self._attention.load(plan.attention, variants[0] if len(variants) == 1 else None, start=start)

    def rehearse(self, plan: StepPlan, size: StepSize) -> None:
        """What ``run`` does, with a graph of one small kernel in place of the step's."""
        self.load(plan, size)
        self._smallest()

    def run(self, plan: StepPlan, size: StepSize, *, ready: Callable[[Tensor], None]) -> StepOutput:
        """Loads the plan and launches its step. MUTATES the cache as the forward does, and the output of the step
        before. ready: called with the loaded tokens before the launch; may MUTATE them."""
        variant = self.load(plan, size)
        ready(self._inputs.tensors(size).tokens)
        self._replays[size, variant]()
        assert self._outputs is not None
        logits, features = self._outputs.logits, self._outputs.features
        return StepOutput(
            None if logits is None else logits[: len(plan.logit_rows)],
            None if features is None else features[: plan.num_rows],
        )

    def _clear_spare(self) -> None:
        self.cache.k[0][self.cache.spare_slot].zero_()

    def _variants(self, size: StepSize) -> tuple[int, ...]:
        """Of the attention kernel: where all rows fit the narrowest tile, wider ones are of no use."""
        variants = self._attention.variants
        return variants[:1] if size.num_rows <= variants[0] else variants

    def _launch_of(self, size: StepSize, variant: int) -> Launch:
        tensors, attention = self._inputs.tensors(size), self._attention.plan(size.num_rows, variant)

        def launch() -> None:
            output = self._forward(tensors, attention)
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
