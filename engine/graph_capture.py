"""Capture: the seam between work that is launched once and its replay as a CUDA graph."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn, Protocol

import torch
from tqdm import tqdm

from kernels.cuda_driver import CudaDriver
from paceline.errors import ConfigError

_log = logging.getLogger(__name__)

Launch = Callable[[], None]


class Capture(Protocol):
    """Turns work of static shapes and addresses into a replay of it."""

    def __call__(self, launch: Launch) -> Launch:
        """Runs ``launch``, once or more, and returns what does the same again with whatever the tensors then hold."""
        ...


class CudaCapture:
    """A Capture into CUDA graphs of one device that share a memory pool, so capture the largest first.

    A graph's intermediate tensors are reused by the next graph: what must outlive a replay is copied out within
    ``launch``. Replays go to the caller's current stream. Captures by one thread at a time; a replay on any thread in
    ``engine.device.computing_on``.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._driver = CudaDriver(device)
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, launch: Launch) -> Launch:
        with torch.cuda.device(self._device):
            # A kernel's first run compiles it, a product's first run allocates a workspace: neither may be captured.
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                launch()
            graph = torch.cuda.CUDAGraph()
            # NCCL's watchdog thread makes CUDA calls of its own, which "global" would forbid.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                launch()
        return _Replay(graph, self._driver, graph.raw_cuda_graph_exec())


@dataclass(frozen=True, slots=True)
class _Replay:
    """A Launch of a graph, which it keeps."""

    graph: torch.cuda.CUDAGraph
    driver: CudaDriver
    handle: int

    def __call__(self) -> None:
        self.driver.launch(self.handle)


@contextmanager
def logged_capture(what: str, device: torch.device) -> Iterator[None]:
    """Logs what the captures within took: time, and memory of the device, that of kernels loaded for them included.

    Raises ConfigError where the memory did not suffice.
    """
    started_s, free_bytes = time.perf_counter(), _free_bytes(device)
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"{what}: {free_bytes / 2**30:.2f} GiB of {device} are left and do not suffice for CUDA graphs; "
            "lower --mem-fraction-static or --cuda-graph-max-rows, or --disable-cuda-graph"
        ) from error
    taken_bytes = free_bytes - _free_bytes(device)
    _log.info("%s: %.1f s, %.2f GiB", what, time.perf_counter() - started_s, taken_bytes / 2**30)


def capture_bar(num_graphs: int) -> tqdm[NoReturn]:
    """The captures' progress, on a terminal."""
    # tqdm's own lock is one between processes: a further process keeps it, and complains where a rank just ends.
    tqdm.set_lock(threading.RLock())
    return tqdm(total=num_graphs, desc="CUDA graphs", unit="graph", disable=None)


def _free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
