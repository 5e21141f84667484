"""Load: how many requests are asked of a fleet, and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from paceline.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Load:
    """Phases of (seconds, requests in flight) for a closed loop, or (seconds, arrivals a second) for an open one.

    The clock of a closed loop starts when each of its first requests has a token, that of an open one with its first
    arrivals. Requests past the number of a phase are cut off when it begins, all at the load's end. What comes in the
    first ramp_s seconds does not count.
    """

    phases: tuple[tuple[float, float], ...]
    is_open: bool = False
    ramp_s: float = 0.0

    @property
    def seconds(self) -> float:
        return sum(seconds for seconds, _ in self.phases)

    @property
    def label(self) -> str:
        """Like 8 (in flight), 2.5/s, 1-8-1 (by turns)."""
        amounts = "-".join(f"{amount:g}" for _, amount in self.phases)
        return f"{amounts}/s" if self.is_open else amounts

    @property
    def most(self) -> float:
        """The largest of its amounts."""
        return max(amount for _, amount in self.phases)

    def arrivals(self, seed: int) -> Iterator[float]:
        """Of an open loop: seconds since its start, Poisson, the same for a seed."""
        rng = np.random.default_rng(seed)
        start_s = 0.0
        for seconds, rate in self.phases:
            at_s = start_s + float(rng.exponential(1.0 / rate))
            start_s += seconds
            while at_s < start_s:
                yield at_s
                at_s += float(rng.exponential(1.0 / rate))


def closed_loads(amounts: tuple[str, ...], seconds: float, *, ramp_s: float = 0.0) -> list[Load]:
    """One for each number of requests in flight. Raises ConfigError."""
    return [Load(((seconds, _whole(amount, "concurrency")),), ramp_s=ramp_s) for amount in amounts]


def open_loads(rates: tuple[str, ...], seconds: float, *, ramp_s: float = 0.0) -> list[Load]:
    """One for each number of arrivals a second. Raises ConfigError."""
    return [Load(((seconds, _number(rate, "rates")),), is_open=True, ramp_s=ramp_s) for rate in rates]


def phased_load(text: str, *, is_open: bool) -> Load:
    """Of seconds:amount;... Raises ConfigError."""
    parts = [part.split(":") for part in text.split(";")]
    if not all(len(part) == 2 for part in parts):
        raise ConfigError(f"--phases is {text!r}; write seconds:amount;..., like 8:2;4:128;8:2")
    read = _number if is_open else _whole
    phases = tuple((_number(seconds, "phases"), read(amount, "phases")) for seconds, amount in parts)
    return Load(phases, is_open=is_open)


def _number(text: str, name: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ConfigError(f"--{name} holds {text!r}; it takes numbers above 0")
    return number


def _whole(text: str, name: str) -> float:
    if not (number := _number(text, name)).is_integer():
        raise ConfigError(f"--{name} holds {text!r}; requests in flight are whole numbers")
    return number
