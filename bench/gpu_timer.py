"""Times work on a GPU as a served step runs it: many uses captured in one CUDA graph, replayed."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

_WARM_UPS = 3


def graph_us(call: Callable[[int], object], *, uses: int, replays: int = 15) -> float:
    """Microseconds of one use: the median over the replays of a graph of ``uses`` calls, one after the other.

    call(i) is the i-th use, so that it may take the i-th copy of its weights. It must not wait for the device.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for i in range(_WARM_UPS):
            call(i)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(uses):
            call(i)
    for _ in range(_WARM_UPS):
        graph.replay()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(replays)]
    for start, stop in events:
        start.record()
        graph.replay()
        stop.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(stop) for start, stop in events) * 1e3 / uses


def copy_bandwidth(num_bytes: int = 4 << 30) -> float:
    """Bytes a second that a copy between two buffers of num_bytes / 2 moves, read and written bytes counted."""
    source = torch.empty(num_bytes // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return num_bytes / (graph_us(lambda _: target.copy_(source), uses=4) * 1e-6)
