"""The k largest of each row with ties to the lowest index, which torch.topk leaves open."""

from __future__ import annotations

import torch
from torch import Tensor


def top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As ``Ops.top_k``: values [rows, k] descending, indices [rows, k] int64. Raises nothing for k up to n."""
    num_scores = scores.shape[1]
    if k == num_scores:
        values, indices = torch.sort(scores, dim=1, descending=True, stable=True)
        return values, indices
    values, indices = torch.topk(scores, k + 1, dim=1)
    tied_across = values[:, k - 1] == values[:, k]
    indices = indices[:, :k]
    if bool(tied_across.any()):
        indices[tied_across] = _lowest_of_ties(scores[tied_across], values[tied_across, k - 1 : k], k)
    indices, _ = torch.sort(indices, dim=1)
    values, order = torch.sort(scores.gather(1, indices), dim=1, descending=True, stable=True)
    return values, indices.gather(1, order)


def _lowest_of_ties(scores: Tensor, kth: Tensor, k: int) -> Tensor:
    """Indices [rows, k] ascending of all above the k-th value [rows, 1], and of the first that equal it."""
    above = scores > kth
    equal = scores == kth
    room = k - above.sum(1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(1) <= room))
    return chosen.nonzero()[:, 1].view(len(scores), k)
