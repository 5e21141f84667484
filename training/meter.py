"""Meter: what happened since the log's last line."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from training.ranks import Ranks
from training.run_log import RunLog
from training.unroll import DepthFigures


class Meter:
    """Adds up on the device; only ``write`` waits for it."""

    def __init__(self, log: RunLog, ranks: Ranks, *, depths: int, device: torch.device) -> None:
        self._log, self._ranks = log, ranks
        self.sums = torch.zeros(4, depths, device=device)  # of this rank
        self.num_tokens = 0  # of all ranks, since the run's first step
        self.note = ""  # for the progress bar
        self._since_s = time.monotonic()
        self._since_tokens = 0

    def restore(self, sums: Tensor, num_tokens: int) -> None:
        """MUTATES sums and num_tokens to a checkpoint's."""
        self.sums.copy_(sums)
        self.num_tokens = self._since_tokens = num_tokens

    def add(self, sums: Tensor, num_tokens: int) -> None:
        self.sums += sums
        self.num_tokens += num_tokens

    def write(self, step: int, **values: float) -> None:
        """A line of the log, on the first rank; every rank calls it. Raises StorageError."""
        figures = DepthFigures.of(self._ranks.add_up(self.sums))
        self.sums.zero_()
        now_s = time.monotonic()
        speed = (self.num_tokens - self._since_tokens) / max(now_s - self._since_s, 1e-9)
        self._since_s, self._since_tokens = now_s, self.num_tokens
        self.note = f"loss {figures.loss[0]:.3f}, chain {figures.chain_length:.2f}, {speed:,.0f} tokens/s"
        if self._ranks.is_first:
            values = {"tokens": self.num_tokens, "tokens_per_s": round(speed), **values}
            self._log.add(step, figures, values=values)
