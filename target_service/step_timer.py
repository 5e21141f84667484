"""StepTimer: how long the two parts of a step take on their device."""

from __future__ import annotations

import time
from typing import Protocol

import torch

from kernels.cuda_driver import CudaDriver, made_event


class StepTimer(Protocol):
    """Marks one step at a time; no mark waits for the device."""

    def start(self) -> None: ...

    def forwarded(self) -> None: ...

    def sampled(self) -> None: ...

    def is_over(self) -> bool:
        """Whether both parts are."""
        ...

    def read_ms(self) -> tuple[float, float]:
        """Milliseconds of the forward and of the sampling. Waits until both are over."""
        ...


class HostTimer:
    """Of a device that computes while it is called."""

    def __init__(self) -> None:
        self._started_s = self._forwarded_s = self._sampled_s = 0.0

    def start(self) -> None:
        self._started_s = time.perf_counter()

    def forwarded(self) -> None:
        self._forwarded_s = time.perf_counter()

    def sampled(self) -> None:
        self._sampled_s = time.perf_counter()

    def is_over(self) -> bool:
        return True

    def read_ms(self) -> tuple[float, float]:
        return (self._forwarded_s - self._started_s) * 1e3, (self._sampled_s - self._forwarded_s) * 1e3


class CudaTimer:
    """Of the current CUDA stream."""

    def __init__(self, device: torch.device) -> None:
        self._driver = CudaDriver(device)
        self._started, self._forwarded, self._sampled = (made_event(enable_timing=True) for _ in range(3))

    def start(self) -> None:
        self._driver.record(self._started.cuda_event)

    def forwarded(self) -> None:
        self._driver.record(self._forwarded.cuda_event)

    def sampled(self) -> None:
        self._driver.record(self._sampled.cuda_event)

    def is_over(self) -> bool:
        over: bool = self._sampled.query()
        return over

    def read_ms(self) -> tuple[float, float]:
        self._sampled.synchronize()
        return self._started.elapsed_time(self._forwarded), self._forwarded.elapsed_time(self._sampled)


def make_timer(device: torch.device) -> StepTimer:
    return CudaTimer(device) if device.type == "cuda" else HostTimer()
