"""Gumbel-max draws of one token a row, under temperature, top-k, top-p and min-p.

All filters keep a prefix of the tokens in the order (logit descending, id ascending), so that a row whose
last candidate is already dropped needs no more candidates. The noise is bounded: u lies in [2^-24, 1 - 2^-24],
so g lies in (-2.82, 16.64), and a token more than _NOISE_SPAN below the largest can never be drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

_NOISE_SPAN = 20.0  # above 16.64 + 2.82, with room for rounding
_MAX_CANDIDATES = 1024  # a nucleus seldom has more; 0.7 ms of topk against 4.6 ms for the sort of 49,152
_SPARSE_SHARE = 12  # noise for single ids takes 12 times as long each as for a whole vocabulary


class NoiseSource(Protocol):
    """The two ops that a draw needs."""

    def gumbel(self, seeds: np.ndarray, positions: np.ndarray, ids: Tensor) -> Tensor: ...

    def top_k(self, scores: Tensor, k: int) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True, slots=True)
class DrawParams:
    """One entry a row: all temperatures are above 0; positions are those of the drawn tokens."""

    seed: np.ndarray  # [n] uint64
    position: np.ndarray  # [n] int32
    temperature: np.ndarray  # [n] float32
    top_k: np.ndarray  # [n] int32, 0 = all
    top_p: np.ndarray  # [n] float32
    min_p: np.ndarray  # [n] float32

    def take(self, rows: np.ndarray) -> DrawParams:
        return DrawParams(
            seed=self.seed[rows],
            position=self.position[rows],
            temperature=self.temperature[rows],
            top_k=self.top_k[rows],
            top_p=self.top_p[rows],
            min_p=self.min_p[rows],
        )


def draw(ops: NoiseSource, logits: Tensor, params: DrawParams) -> np.ndarray:
    """int64 [n]: the token of each row. logits: [n, V] fp32, -inf where a token is masked."""
    vocab_size = logits.shape[1]
    top_k = np.where(params.top_k >= vocab_size, 0, params.top_k)
    temperature = torch.from_numpy(params.temperature).to(logits.device)
    scores = (logits - logits.amax(1, keepdim=True)) / temperature[:, None]
    tokens = np.empty(len(logits), np.int64)

    ranked = (top_k > 0) | (params.top_p < 1)
    pending = np.flatnonzero(ranked & (top_k <= _MAX_CANDIDATES))
    if pending.size:
        nucleus = (params.top_p[pending] < 1) & (top_k[pending] == 0)
        num_candidates = _MAX_CANDIDATES if nucleus.any() else int(top_k[pending].max())
        drawn, done = _draw_ranked(ops, scores[pending], params.take(pending), num_candidates)
        tokens[pending] = drawn
        pending = pending[~done]
    wide = np.concatenate([pending, np.flatnonzero(top_k > _MAX_CANDIDATES)])
    if wide.size:
        tokens[wide], _ = _draw_ranked(ops, scores[wide], params.take(wide), vocab_size)
    plain = np.flatnonzero(~ranked)
    if plain.size:
        tokens[plain] = _draw_unranked(ops, scores[plain], params.take(plain))
    return tokens


def _draw_ranked(
    ops: NoiseSource, scores: Tensor, params: DrawParams, num_candidates: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draws among the num_candidates largest; also says for which rows those were enough."""
    vocab_size = scores.shape[1]
    num_candidates = min(num_candidates, vocab_size)
    values, ids = ops.top_k(scores, num_candidates)
    device = scores.device
    top_k = torch.from_numpy(np.where(params.top_k > 0, params.top_k, vocab_size)).to(device)[:, None]
    keep = (torch.arange(num_candidates, device=device) < top_k) & (values > float("-inf"))

    weights = torch.where(keep, values.double().exp(), 0.0)
    total = weights.sum(1, keepdim=True)
    unlimited = top_k >= vocab_size
    if bool(unlimited.any()):
        total = torch.where(unlimited, scores.exp().sum(1, keepdim=True, dtype=torch.float64), total)
    before = weights.cumsum(1) - weights
    keep &= before < torch.from_numpy(params.top_p).to(device)[:, None] * total
    keep &= values >= _floor(params, device)

    noisy = torch.where(keep, values + _noise(ops, params, ids, vocab_size), float("-inf"))
    best = noisy.amax(1, keepdim=True)
    drawn = torch.where(noisy == best, ids, vocab_size).amin(1)
    enough = ~keep[:, -1:] | (top_k <= num_candidates)
    return drawn.cpu().numpy(), enough[:, 0].cpu().numpy()


def _draw_unranked(ops: NoiseSource, scores: Tensor, params: DrawParams) -> np.ndarray:
    """Draws where min-p alone filters, so that no order is needed."""
    alive = scores >= _floor(params, scores.device)
    row, token = alive.nonzero(as_tuple=True)
    if len(row) * _SPARSE_SHARE < scores.numel():
        host_row = row.cpu().numpy()
        noise = ops.gumbel(params.seed[host_row], params.position[host_row], token[:, None])
        noisy = torch.full_like(scores, float("-inf"))
        noisy[row, token] = scores[row, token] + noise[:, 0]
    else:
        noise = _whole_noise(ops, params, scores.shape[1], scores.device)
        noisy = torch.where(alive, scores + noise, float("-inf"))
    return noisy.argmax(1).cpu().numpy()


def _noise(ops: NoiseSource, params: DrawParams, ids: Tensor, vocab_size: int) -> Tensor:
    """fp32 [n, m], of ids [n, m]."""
    if ids.shape[1] * _SPARSE_SHARE < vocab_size:
        return ops.gumbel(params.seed, params.position, ids)
    return _whole_noise(ops, params, vocab_size, ids.device).gather(1, ids)


def _whole_noise(ops: NoiseSource, params: DrawParams, vocab_size: int, device: torch.device) -> Tensor:
    return ops.gumbel(params.seed, params.position, torch.arange(vocab_size, device=device))


def _floor(params: DrawParams, device: torch.device) -> Tensor:
    """fp32 [n, 1]: below it min-p drops a token, or noise cannot lift it to the top. The largest score is 0."""
    min_p = torch.from_numpy(params.min_p).to(device).log()
    return min_p.clamp_min(-_NOISE_SPAN)[:, None]
