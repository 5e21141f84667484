"""CudaDriver: the driver's own copies, marks and graph launch, for a host that has gone cold while a device computed.

PyTorch's take 5 us each in a loop and 55 after a pause of 4 ms, the driver's 25 and 7 then (one H200's host, Xeon).
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

_LIBRARY = "libcuda.so.1"  # the driver's, wherever there is a GPU


class CudaDriver:
    """Of one device. Calls go to the calling thread's current stream, and need the device's context there:
    ``engine.device.computing_on``."""

    def __init__(self, device: torch.device) -> None:
        self._device = torch.cuda.current_device() if device.index is None else device.index
        library = ctypes.PyDLL(_LIBRARY)  # keeps the interpreter's lock: no call waits
        address, pointer = ctypes.c_uint64, ctypes.c_void_p
        self._upload = _function(library.cuMemcpyHtoDAsync_v2, address, pointer, ctypes.c_size_t, pointer)
        self._download = _function(library.cuMemcpyDtoHAsync_v2, pointer, address, ctypes.c_size_t, pointer)
        self._record = _function(library.cuEventRecord, pointer, pointer)
        self._launch = _function(library.cuGraphLaunch, pointer, pointer)
        self._name_error = library.cuGetErrorName

    def upload(self, target: int, source: int, num_bytes: int) -> None:
        """From pinned memory. Addresses; both stay valid until the copy was made. Raises RuntimeError."""
        self._check(self._upload(target, source, num_bytes, self._stream()), "cuMemcpyHtoDAsync")

    def download(self, target: int, source: int, num_bytes: int) -> None:
        """To pinned memory, likewise."""
        self._check(self._download(target, source, num_bytes, self._stream()), "cuMemcpyDtoHAsync")

    def record(self, event: int) -> None:
        """event: the handle of a ``made_event``. Raises RuntimeError."""
        self._check(self._record(event, self._stream()), "cuEventRecord")

    def launch(self, graph: int) -> None:
        """graph: the handle of an executable one, as ``torch.cuda.CUDAGraph.raw_cuda_graph_exec`` gives it, which uses
        none of PyTorch's random numbers. Raises RuntimeError."""
        self._check(self._launch(graph, self._stream()), "cuGraphLaunch")

    def _stream(self) -> int:
        stream: int = torch._C._cuda_getCurrentRawStream(self._device)  # current_stream makes objects: 50 us when cold
        return stream

    def _check(self, code: int, call: str) -> None:
        if code:
            name = ctypes.c_char_p()
            self._name_error(code, ctypes.byref(name))
            raise RuntimeError(f"{call} on cuda:{self._device}: {(name.value or b'error').decode()} ({code})")


def made_event(*, enable_timing: bool = False) -> torch.cuda.Event:
    """One that has a handle, ``cuda_event``, already: PyTorch makes it at the first mark."""
    event = torch.cuda.Event(enable_timing=enable_timing)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _function(function: Any, *arguments: Any) -> Any:
    function.argtypes, function.restype = arguments, ctypes.c_int
    return function
