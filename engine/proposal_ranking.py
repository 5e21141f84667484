"""Ranks the head's candidates: by log q when greedy, by log q + g with the target's own noise when it samples.

The target draws argmax(log p + g(seed, position, token)); a head that ranks by its own log q plus the same g
guesses that draw better, and changes no token (protocol.md, "Verifying"; after Daliri et al., arXiv 2408.07978).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from engine.head_model import HeadModel

_NOISED = 256  # candidates a row that get noise


class Sampling(Protocol):
    """What a ranking needs to know of a request."""

    @property
    def seed(self) -> int: ...

    @property
    def temperature(self) -> float: ...


@dataclass(frozen=True, slots=True)
class RankRows:
    """How each row is ranked. positions are those of the candidates."""

    seed: np.ndarray  # [rows] uint64
    temperature: np.ndarray  # [rows] float32, 0 = greedy
    positions: np.ndarray  # [rows] int64

    @classmethod
    def of(cls, params: Sequence[Sampling], positions: np.ndarray) -> RankRows:
        return cls(
            np.array([p.seed for p in params], np.uint64),
            np.array([p.temperature for p in params], np.float32),
            positions,
        )

    def take(self, rows: np.ndarray, ahead: int) -> RankRows:
        """Those rows, with candidates ``ahead`` positions further on."""
        return RankRows(self.seed[rows], self.temperature[rows], self.positions[rows] + ahead)


class Ranker:
    """Turns hidden states into the best next tokens."""

    def __init__(self, model: HeadModel) -> None:
        self._model = model
        self._ops = model.ops

    def rank(self, hidden: Tensor, rows: RankRows, width: int) -> tuple[np.ndarray, np.ndarray]:
        """hidden [rows, H] -> the width best of each: log-probabilities fp32 descending, target ids, [rows, width].

        Ties go to the lower draft id when greedy. With noise the scores are log-softmax over log q + g.
        """
        logits = self._model.logits(hidden)
        sampled = np.flatnonzero(rows.temperature > 0)
        if len(sampled) == 0:
            return self._greedy(logits, width)
        if len(sampled) == len(logits):
            return self._noised(logits, rows, width)
        greedy = np.flatnonzero(rows.temperature == 0)
        scores, ids = np.empty((len(logits), width), np.float32), np.empty((len(logits), width), np.int64)
        scores[greedy], ids[greedy] = self._greedy(logits[greedy], width)
        scores[sampled], ids[sampled] = self._noised(logits[sampled], rows.take(sampled, 0), width)
        return scores, ids

    def _greedy(self, logits: Tensor, width: int) -> tuple[np.ndarray, np.ndarray]:
        values, draft_ids = self._ops.top_k(logits, width)
        scores = values - logits.logsumexp(1, keepdim=True)
        return scores.cpu().numpy(), self._model.target_ids(draft_ids).cpu().numpy()

    def _noised(self, logits: Tensor, rows: RankRows, width: int) -> tuple[np.ndarray, np.ndarray]:
        values, draft_ids = self._ops.top_k(logits, min(_NOISED, logits.shape[1]))
        ids = self._model.target_ids(draft_ids)
        temperature = torch.from_numpy(rows.temperature).to(logits.device)[:, None]
        scaled = (values - values[:, :1]) / temperature
        noisy = torch.log_softmax(scaled + self._ops.gumbel(rows.seed, rows.positions, ids), 1)
        scores, best = self._ops.top_k(noisy, width)
        return scores.cpu().numpy(), ids.gather(1, best).cpu().numpy()
