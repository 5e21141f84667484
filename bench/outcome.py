"""What a measured request came to, and all requests of one run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from client.completion import Completion
from paceline.types import TreeShape


class Arrival(NamedTuple):
    """A message with tokens, when it came. Times here are seconds of the machine's monotonic clock."""

    at_s: float
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """A completion, or why there is none; neither where the request was cut off."""

    completion: Completion | None
    error: str = ""
    sent_s: float = 0.0
    ended_s: float = 0.0
    arrivals: tuple[Arrival, ...] = ()


@dataclass(frozen=True, slots=True)
class Steady:
    """The part of a run with all its requests in flight: from when each of the first has a token, to when none is
    left to send."""

    seconds: float
    output_tokens: int

    @property
    def tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Run:
    """All requests of one mode in the order of their start, and the seconds from first send to last end."""

    mode: str
    repeat: int  # counts the runs of the mode, from 0 on
    concurrency: int
    seconds: float
    outcomes: tuple[Outcome, ...]
    shape: TreeShape | None = None  # None: plain, or as the router decides
    steady: Steady | None = None  # None where fewer requests ran than make one
    client_busy: float | None = None  # share of a core that the busiest client process used

    @property
    def completions(self) -> list[Completion]:
        return [outcome.completion for outcome in self.outcomes if outcome.completion is not None]

    @property
    def errors(self) -> list[str]:
        return [outcome.error for outcome in self.outcomes if outcome.error]

    @property
    def output_tokens(self) -> int:
        return sum(len(completion.token_ids) for completion in self.completions)

    @property
    def tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds

    @property
    def rate(self) -> float:
        """Tokens a second: of the steady part, where there is one."""
        return self.tokens_per_s if self.steady is None else self.steady.tokens_per_s


def steady_part(outcomes: tuple[Outcome, ...], concurrency: int, *, exhausted_s: float) -> Steady | None:
    """outcomes in the order of their start; exhausted_s: when an ended request found no other to replace it."""
    first = [outcome.arrivals[0].at_s for outcome in outcomes[:concurrency] if outcome.arrivals]
    if len(outcomes) <= concurrency or not first or exhausted_s <= max(first):
        return None
    start_s = max(first)
    arrivals = (arrival for outcome in outcomes for arrival in outcome.arrivals)
    num_tokens = sum(arrival.num_tokens for arrival in arrivals if start_s < arrival.at_s <= exhausted_s)
    return Steady(exhausted_s - start_s, num_tokens)
