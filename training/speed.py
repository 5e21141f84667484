"""Speed: tokens a second of one request with a head and without, for a head that guesses better may take longer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.reference_loop import InProcess
from paceline.types import SamplingParams, TreeShape
from training.batch_rounds import BatchRounds, Rounds


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """Greedy, one request at a time, prompts included, target and head in one process without services."""

    head: str  # its fingerprint
    shape: tuple[int, int, int]  # num_steps, eagle_topk, num_draft_tokens
    prompts: int
    tokens_per_s: float
    plain_tokens_per_s: float  # without a head, measured in turns with it


class SpeedMeter:
    """Of one head. On a GPU steps and trees are CUDA graphs, as in the services."""

    def __init__(self, model: InProcess, prompts: Sequence[Sequence[int]], *, max_tokens: int) -> None:
        assert model.head is not None
        self._prompts = [np.array(prompt, np.int32) for prompt in prompts]
        self._config, self._max_tokens = model.target.config, max_tokens
        longest = max(map(len, self._prompts))
        self._rounds = BatchRounds(model.target, model.head, num_seats=1, max_tokens=longest + max_tokens)

    def measure(self, head: str, shapes: Sequence[TreeShape]) -> list[SpeedRow]:
        """A row a shape. What the first runs compile is not counted."""
        self._rounds.capture(shapes)
        self._time(self._prompts[0], None)
        rows = []
        for shape in shapes:
            self._time(self._prompts[0], shape)
            sums = np.zeros((2, 2))
            for prompt in self._prompts:
                sums += [self._time(prompt, shape), self._time(prompt, None)]
            (tokens, seconds), (plain_tokens, plain_seconds) = sums.tolist()
            numbers = (shape.num_steps, shape.eagle_topk, shape.num_draft_tokens)
            rows.append(SpeedRow(head, numbers, len(self._prompts), tokens / seconds, plain_tokens / plain_seconds))
        return rows

    def _time(self, prompt: np.ndarray, shape: TreeShape | None) -> tuple[int, float]:
        """Tokens and seconds of one answer."""
        limit = min(self._max_tokens, self._config.max_position_embeddings - len(prompt))
        rounds = Rounds(prompt, SamplingParams(limit, stop_token_ids=self._config.eos_token_ids))
        started_s = time.perf_counter()
        self._rounds.run([rounds], shape)
        return len(rounds.emitted), time.perf_counter() - started_s
