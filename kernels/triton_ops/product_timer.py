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


def product_us(products: Sequence[Product], operands: Operands) -> list[float]:
    """Microseconds of one use of each, median of some; they take turns, so that none has a colder device.

    Each must have run before, for a first run may load kernels. Waits for the device. Takes memory for copies of the
    weight, and gives it back.
    """
    device, num_bytes = operands.weight.device, operands.weight.nbytes
    cache_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    copies = min(_MAX_USES, -(-_L2_CACHES * cache_bytes // num_bytes))
    uses = min(_MAX_USES, max(_MIN_USES, copies, -(-_GRAPH_BYTES // num_bytes)))
    weights = [operands.weight, *(operands.weight.clone() for _ in range(copies - 1))]
    out = torch.empty((len(operands.x), len(operands.weight)), dtype=operands.x.dtype, device=device)
    current = torch.cuda.current_stream(device)
    # The default stream cannot be captured.
    stream = torch.cuda.Stream(device) if current == torch.cuda.default_stream(device) else current
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        uses_of = [Operands(operands.x, weights[i % copies], operands.bias) for i in range(uses)]
        graphs = [_captured(product, uses_of, out) for product in products]
        spans: list[list[tuple[torch.cuda.Event, torch.cuda.Event]]] = [[] for _ in graphs]
        for _ in range(1 + _ROUNDS):
            for graph, taken in zip(graphs, spans, strict=True):
                start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                graph.replay()
                stop.record()
                taken.append((start, stop))
        stream.synchronize()
    return [statistics.median(start.elapsed_time(stop) for start, stop in taken[1:]) * 1e3 / uses for taken in spans]


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
