"""TimedRun: what came of one load by the clock."""

from __future__ import annotations

from dataclasses import dataclass

from bench.load import Load
from bench.outcome import Arrival, Outcome
from bench.workload import Variant
from client.completion import Completion

LEAST_TOKENS = 8  # after the first: of a request whose time per token counts


@dataclass(frozen=True, slots=True)
class TimedRun:
    """outcomes by number, those of requests that were cut off as well. began_s: when the clock started."""

    variant: Variant
    load: Load
    outcomes: dict[int, Outcome]
    began_s: float
    client_busy: float  # share of a core that the busiest client process used

    @property
    def errors(self) -> list[str]:
        return [outcome.error for outcome in self.outcomes.values() if outcome.error]

    @property
    def completions(self) -> list[Completion]:
        return [outcome.completion for outcome in self.outcomes.values() if outcome.completion is not None]

    @property
    def tokens_per_s(self) -> float:
        """Of the load's seconds after its ramp."""
        return sum(arrival.num_tokens for _, arrival in self._counted()) / (self.load.seconds - self.load.ramp_s)

    def ttft_ms(self) -> list[float]:
        """Of each request whose first token came in that time."""
        return [(outcome.arrivals[0].at_s - outcome.sent_s) * 1e3 for outcome in self._begun()]

    def tpot_ms(self) -> list[float]:
        """Time a token after the first, of each request with at least LEAST_TOKENS of them."""
        times = (time_per_token_ms(outcome.arrivals) for outcome in self.outcomes.values())
        return [time_ms for time_ms in times if time_ms is not None]

    def _begun(self) -> list[Outcome]:
        counted = {number for number, arrival in self._counted() if arrival is self.outcomes[number].arrivals[0]}
        return [self.outcomes[number] for number in counted]

    def _counted(self) -> list[tuple[int, Arrival]]:
        start_s, stop_s = self.began_s + self.load.ramp_s, self.began_s + self.load.seconds
        return [
            (number, arrival)
            for number, outcome in self.outcomes.items()
            for arrival in outcome.arrivals
            if start_s <= arrival.at_s < stop_s
        ]


def time_per_token_ms(arrivals: tuple[Arrival, ...]) -> float | None:
    """From the first message to the last; None for fewer than LEAST_TOKENS after the first."""
    num_later = sum(arrival.num_tokens for arrival in arrivals[1:])
    if num_later < LEAST_TOKENS:
        return None
    return (arrivals[-1].at_s - arrivals[0].at_s) / num_later * 1e3
