"""Growers: the sessions that are to get trees in one growth, a column each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from engine.extend_batch import Noise
from engine.pages import slots_at


class Growers(NamedTuple):
    """Columns [g]."""

    places: np.ndarray  # int64: of their last hidden states
    roots: np.ndarray  # int32: tokens
    committed_len: np.ndarray  # int64
    shapes: np.ndarray  # int64 [4, g]: num_steps, topk, num_nodes, min_path_permille
    noise: Noise
    page_ids: np.ndarray  # int32 [g, pages]
    page_size: int

    def take(self, some: np.ndarray | slice) -> Growers:
        """Those at these columns."""
        return Growers(
            self.places[some],
            self.roots[some],
            self.committed_len[some],
            self.shapes[:, some],
            Noise(self.noise.seed[some], self.noise.temperature[some]),
            self.page_ids[some],
            self.page_size,
        )

    def scratch_slots(self, num_scratch: int) -> np.ndarray:
        """int64 [num_scratch, g]: of the positions past each session's rows."""
        page_size, count = self.page_size, len(self.places)
        if count > 1:
            positions = self.committed_len + np.arange(num_scratch)[:, None]
            return slots_at(self.page_ids, np.arange(count), positions, page_size)
        first, page_at = self.committed_len.item(), self.page_ids[0].item  # in lists, faster for one
        places = (divmod(position, page_size) for position in range(first, first + num_scratch))
        return np.array([[page_at(page) * page_size + offset] for page, offset in places])
