"""NodesCopy: finished trees on their way to the host."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.tree_columns import TreeColumns
from kernels.cuda_driver import CudaDriver, made_event
from paceline.tree import MAX_NODES

_NODE_BYTES = 4


class NodesCopy:
    """Of one round: ``add`` those of each growth, ``send``, ``trees``."""

    def __init__(self, max_sessions: int, device: torch.device) -> None:
        is_cuda = device.type == "cuda"
        self._host = torch.empty(max_sessions * (1 + 2 * MAX_NODES), dtype=torch.int32, pin_memory=is_cuda)
        self._bytes = self._host.numpy().data.cast("B")
        self._driver = CudaDriver(device) if is_cuda else None
        self._arrived = made_event() if is_cuda else None
        self._parts: list[tuple[int, int]] = []  # rows and columns of each growth
        self._used = 0

    def add(self, nodes: Tensor) -> None:
        """nodes: [sessions, 1 + 2 n] int32, contiguous."""
        rows, columns = nodes.shape
        start, count = self._used, rows * columns
        assert (start + count) * _NODE_BYTES <= len(self._bytes), "more trees than there are sessions"
        if self._driver is None:
            self._host[start : start + count].view(rows, columns).copy_(nodes)
        else:
            place = self._host.data_ptr() + start * _NODE_BYTES
            self._driver.download(place, nodes.data_ptr(), count * _NODE_BYTES)
        self._used += count
        self._parts.append((rows, columns))

    def send(self) -> None:
        """To be called after the last growth."""
        if self._driver is not None and self._arrived is not None:
            self._driver.record(self._arrived.cuda_event)

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
