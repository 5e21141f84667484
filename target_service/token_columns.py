"""TokenColumns: new tokens of many requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class TokenColumns:
    """Each request once; the tokens are flat, in the order of the requests."""

    request: np.ndarray  # uint64 [b]
    offset: np.ndarray  # int64 [b]: of the first token, counted from the first that any attempt emitted
    num_tokens: np.ndarray  # int64 [b]
    tokens: np.ndarray  # int32 [sum of num_tokens]

    def of(self, chosen: np.ndarray) -> TokenColumns:
        """Those of some of the requests: bool [b]."""
        tokens = self.tokens[np.repeat(chosen, self.num_tokens)]
        return TokenColumns(self.request[chosen], self.offset[chosen], self.num_tokens[chosen], tokens)


def join(parts: Sequence[TokenColumns]) -> TokenColumns:
    """The tokens of several steps, at least one; those of one request in the order of the steps."""
    if len(parts) == 1:
        return parts[0]
    request = np.concatenate([part.request for part in parts])
    num_tokens = np.concatenate([part.num_tokens for part in parts])
    _, first, group = np.unique(request, return_index=True, return_inverse=True)
    ranks = np.searchsorted(np.sort(first), first[group])  # requests count up as they first appear
    order = np.argsort(ranks, kind="stable")
    first = np.sort(first)
    counts = num_tokens[order]
    ends = np.cumsum(num_tokens)
    index = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - ends[order], counts)
    return TokenColumns(
        request=request[first],
        offset=np.concatenate([part.offset for part in parts])[first],
        num_tokens=np.bincount(ranks, weights=num_tokens).astype(np.int64),
        tokens=np.concatenate([part.tokens for part in parts])[index],
    )
