"""NodesCopy: finished trees on their way to the host."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.tree_columns import TreeColumns
from paceline.tree import MAX_NODES

_NODE_BYTES = 4
_MAX_PLACES = 1024  # views that are kept


class NodesCopy:
    """Of one round: ``add`` those of each growth, ``send``, ``trees``."""

    def __init__(self, max_sessions: int, device: torch.device) -> None:
        is_cuda = device.type == "cuda"
        self._host = torch.empty(max_sessions * (1 + 2 * MAX_NODES), dtype=torch.int32, pin_memory=is_cuda)
        self._bytes = self._host.numpy().data.cast("B")
        self._arrived = torch.cuda.Event() if is_cuda else None
        self._places: dict[tuple[int, int, int], Tensor] = {}
        self._parts: list[tuple[int, int]] = []  # rows and columns of each growth
        self._used = 0

    def add(self, nodes: Tensor) -> None:
        """nodes: [sessions, 1 + 2 n] int32."""
        rows, columns = nodes.shape
        self._place(rows, columns).copy_(nodes, non_blocking=True)
        self._used += rows * columns
        self._parts.append((rows, columns))

    def _place(self, rows: int, columns: int) -> Tensor:
        """Where the next nodes go: views that are kept, for making two takes as long as ordering the copy."""
        key = self._used, rows, columns
        place = self._places.get(key)
        if place is None:
            if len(self._places) == _MAX_PLACES:
                self._places.clear()
            place = self._places[key] = self._host[self._used : self._used + rows * columns].view(rows, columns)
        return place

    def send(self) -> None:
        """To be called after the last growth."""
        if self._arrived is not None:
            self._arrived.record()

    def has_arrived(self) -> bool:
        return self._arrived is None or self._arrived.query()

    def trees(self) -> TreeColumns:
        """Waits for the copy. Forgets what was added."""
        if self._arrived is not None:
            self._arrived.synchronize()
        parts, start = [], 0
        for rows, columns in self._parts:
            stop = start + rows * columns
            nodes = self._bytes[start * _NODE_BYTES : stop * _NODE_BYTES].tobytes()
            parts.append(TreeColumns.of_rows(nodes, rows))
            start = stop
        self._parts, self._used = [], 0
        return TreeColumns.join(parts)
