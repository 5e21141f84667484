"""Times ways to compute a product as a served step runs it: in CUDA graphs, with weights that come from memory."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.triton_ops.product import Operands, Product

_L2_CACHES = 3  # copies of the weight, which take turns, fill the cache that often
_GRAPH_BYTES = 1 << 30  # of weights that a graph reads: about 0.25 ms, which an event's resolution does not blur
_MIN_USES, _MAX_USES = 4, 32
_ROUNDS = 7


class ProductTimer:
    """Takes a stream of its own where the caller is on the default one, which cannot be captured."""

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, products: Sequence[Product], operands: Operands) -> list[float]:
        """Microseconds of one use of each, median of some; they take turns, so that none has a colder device.

        Each must have run before, for a first run may load kernels. Waits for the device. Takes memory for copies of
        the weight, and gives it back.
        """
        device, num_bytes = operands.weight.device, operands.weight.nbytes
        cache_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        copies = min(_MAX_USES, -(-_L2_CACHES * cache_bytes // num_bytes))
        uses = min(_MAX_USES, max(_MIN_USES, copies, -(-_GRAPH_BYTES // num_bytes)))
        weights = [operands.weight, *(operands.weight.clone() for _ in range(copies - 1))]
        out = torch.empty((len(operands.x), len(operands.weight)), dtype=operands.x.dtype, device=device)
        stream = self._stream_beside(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            uses_of = [Operands(operands.x, weights[i % copies], operands.bias) for i in range(uses)]
            graphs = [_captured(product, uses_of, out) for product in products]
            spans = [[_replayed(graph) for graph in graphs] for _ in range(1 + _ROUNDS)]
            stream.synchronize()
        rounds = [[start.elapsed_time(stop) * 1e3 / uses for start, stop in taken] for taken in spans[1:]]
        return [statistics.median(times) for times in zip(*rounds, strict=True)]

    def _stream_beside(self, current: torch.cuda.Stream) -> torch.cuda.Stream:
        if current != torch.cuda.default_stream(current.device):
            return current
        if self._stream is None:
            self._stream = torch.cuda.Stream(current.device)
        self._stream.wait_stream(current)
        return self._stream


def _replayed(graph: torch.cuda.CUDAGraph) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    """Before and after it, to be read once the stream is through."""
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    stop.record()
    return start, stop


def _captured(product: Product, uses_of: Sequence[Operands], out: Tensor) -> torch.cuda.CUDAGraph:
    """Of the current stream. torch.cuda.graph would empty the allocator's cache, for each of some hundred graphs."""
    product(uses_of[0], out)  # torch takes a workspace for a new stream
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        for operands in uses_of:
            product(operands, out)
    finally:
        graph.capture_end()
    return graph
