"""Ranks the head's candidates: by log q when greedy, by log q + g with the target's own noise when it samples.

The target draws argmax(log p + g(seed, position, token)); a head that ranks by its own log q plus the same g
guesses that draw better, and changes no token (protocol.md, "Verifying"; after Daliri et al., arXiv 2408.07978).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from engine.head_model import HeadModel
from kernels.ops import Ops

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


@dataclass(frozen=True, slots=True)
class NoiseRows:
    """RankRows on the device."""

    seed: Tensor  # [rows] int64, the bit patterns of uint64
    temperature: Tensor  # [rows] fp32, 0 = greedy
    positions: Tensor  # [rows] int64


@dataclass(frozen=True, slots=True)
class SessionNoise:
    """How each session's candidates are ranked, on the device."""

    seed: Tensor  # [b] int64, the bit patterns of uint64
    temperature: Tensor  # [b] fp64
    committed_len: Tensor  # [b] int64

    def rows(self, width: int, level: int) -> NoiseRows:
        """Of the beam nodes, width a session, whose children stand level + 1 positions past the root."""
        columns = (self.seed, self.temperature.float(), self.committed_len + 1 + level)
        return NoiseRows(*(column.repeat_interleave(width) if width > 1 else column for column in columns))


class Ranked(NamedTuple):
    """The best next tokens of each row, descending."""

    log_probs: Tensor  # [rows, width] fp32
    draft_ids: Tensor  # [rows, width] int64


def rank_greedy(ops: Ops, logits: Tensor, width: int) -> Ranked:
    """logits: [rows, draft vocabulary] fp32. Ties go to the lower draft id."""
    return Ranked(*ops.top_k_log_probs(logits, width))


def rank_noised(model: HeadModel, logits: Tensor, rows: NoiseRows, width: int) -> Ranked:
    """By log-softmax over log q / temperature + g, of the likeliest candidates; as ``rank_greedy`` at temperature 0."""
    ops = model.ops
    log_probs, draft_ids = ops.top_k_log_probs(logits, min(_NOISED, logits.shape[1]))
    is_greedy = (rows.temperature == 0)[:, None]
    temperature = torch.where(is_greedy, 1.0, rows.temperature[:, None])
    noise = ops.gumbel_rows(rows.seed, rows.positions, model.target_ids(draft_ids))
    noisy, best = ops.top_k_log_probs((log_probs - log_probs[:, :1]) / temperature + noise, width)
    return Ranked(
        torch.where(is_greedy, log_probs[:, :width], noisy),
        torch.where(is_greedy, draft_ids[:, :width], draft_ids.gather(1, best)),
    )


class Ranker:
    """Turns hidden states into the best next tokens, on the host."""

    def __init__(self, model: HeadModel) -> None:
        self._model = model

    def rank(self, hidden: Tensor, rows: RankRows, width: int) -> tuple[np.ndarray, np.ndarray]:
        """hidden [rows, H] -> the width best of each: log-probabilities fp32 descending, target ids, [rows, width]."""
        sampled = np.flatnonzero(rows.temperature > 0)
        if len(sampled) == 0:
            best, tokens = self._model.best(hidden, width)
            return best.cpu().numpy(), tokens.cpu().numpy()
        logits = self._model.logits(hidden)
        if len(sampled) == len(logits):
            return self._to_host(self._noised(logits, rows, width))
        greedy = np.flatnonzero(rows.temperature == 0)
        scores, ids = np.empty((len(logits), width), np.float32), np.empty((len(logits), width), np.int64)
        scores[greedy], ids[greedy] = self._to_host(rank_greedy(self._model.ops, logits[greedy], width))
        scores[sampled], ids[sampled] = self._to_host(self._noised(logits[sampled], rows.take(sampled, 0), width))
        return scores, ids

    def _noised(self, logits: Tensor, rows: RankRows, width: int) -> Ranked:
        columns = (rows.seed.view(np.int64), rows.temperature, rows.positions)
        on_device = NoiseRows(*(torch.from_numpy(column).to(logits.device) for column in columns))
        return rank_noised(self._model, logits, on_device, width)

    def _to_host(self, ranked: Ranked) -> tuple[np.ndarray, np.ndarray]:
        return ranked.log_probs.cpu().numpy(), self._model.target_ids(ranked.draft_ids).cpu().numpy()
