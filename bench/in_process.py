"""The reference run: engine and head in this process, one request at a time, no RPC."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from bench.chat_prompt import ChatPrompt
from bench.config import BenchConfig
from bench.outcome import Outcome, Run
from bench.workload import PLAIN, Variant
from client.completion import Completion
from engine.reference_loop import InProcess
from paceline.defaults import DEFAULT_TREE
from paceline.errors import PacelineError
from paceline.stats import SpeculationStats
from paceline.types import SamplingParams, TreeShape


class InProcessLoop:
    """Runs the modes of config over prompts on a model of its own. Raises ModelLoadError."""

    def __init__(self, config: BenchConfig, prompts: Sequence[str], *, dtype: str) -> None:
        self._config = config
        template = ChatPrompt(config.model_path)
        self._prompts = [template.ids(prompt) for prompt in prompts]
        head_path = Path(config.speculative_draft_model_path)
        num_threads = config.num_threads or len(os.sched_getaffinity(0))
        self._model = InProcess(Path(config.model_path), head_path, getattr(torch, dtype), num_threads=num_threads)

    def run(self, variant: Variant, *, repeat: int, on_end: Callable[[], object]) -> Run:
        """Sends every prompt once; on_end is called after each. A request that fails is counted, not raised."""
        shape = None if variant.mode == PLAIN else variant.shape or DEFAULT_TREE
        outcomes = []
        started_s = time.monotonic()
        for index in range(len(self._prompts)):
            outcomes.append(self._request(index, shape))
            on_end()
        return Run(variant.mode, repeat, 1, time.monotonic() - started_s, tuple(outcomes), variant.shape)

    def _request(self, index: int, shape: TreeShape | None) -> Outcome:
        prompt, times_s = self._prompts[index], []
        params = SamplingParams(**self._config.sampling(index).given())
        started_s = time.monotonic()
        try:
            generation = self._model.generate(
                prompt, params, shape, on_tokens=lambda _: times_s.append(time.monotonic() - started_s)
            )
        except PacelineError as error:
            return Outcome(None, f"{type(error).__name__}: {error}")
        return Outcome(
            Completion(
                request_id=str(index),
                text="",
                prompt_ids=tuple(prompt),
                token_ids=tuple(generation.tokens),
                finish_reason=generation.finish_reason,
                stats=_stats(generation.num_rounds, generation.accept_lengths, shape),
                first_token_s=times_s[0],
                last_token_s=times_s[-1],
            )
        )


def _stats(num_rounds: int, accept_lengths: Sequence[int], shape: TreeShape | None) -> SpeculationStats:
    num_steps = 0 if shape is None else shape.num_steps
    return SpeculationStats(
        speculative_rounds=len(accept_lengths),
        rounds=num_rounds,
        accepted_drafts=sum(accept_lengths),
        accepted_by_depth=tuple(sum(n >= depth for n in accept_lengths) for depth in range(1, num_steps + 1)),
    )
