"""The runs of the router's bench: those of all variants interleaved, and what one of them gives."""

from __future__ import annotations

import contextlib
import functools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bench.load_generator import LoadGenerator
from bench.outcome import Run
from bench.router_rig import Rig
from bench.workload import Variant, Workload
from client.request import Sampling
from paceline.errors import PacelineError

FiguresT = TypeVar("FiguresT")


@dataclass(frozen=True, slots=True)
class Work:
    """What is asked in one run."""

    prompts: tuple[str, ...]
    max_tokens: int
    variant: Variant  # of decoding
    num_streams: int
    num_requests: int
    num_processes: int  # that send


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """One run, from its first send to its last end.

    cpu_s: of the router, or of what stood in its place; client_busy: share of a core of the busiest client process;
    first_token_ms: of the median request, as its client saw it.
    """

    seconds: float
    tokens_per_s: float
    num_messages: int
    num_tokens: int
    cpu_s: float
    client_busy: float
    first_token_ms: float

    def as_dict(self) -> dict[str, float]:
        return {
            "tokens_per_s": self.tokens_per_s,
            "messages_per_s": self.num_messages / self.seconds,
            "cpu_cores": self.cpu_s / self.seconds,
            "cpu_us_per_message": self.cpu_s / self.num_messages * 1e6,
            "cpu_us_per_token": self.cpu_s / self.num_tokens * 1e6,
            "client_cores": self.client_busy,
            "first_token_ms": self.first_token_ms,
        }


def load_runs(rigs: Sequence[Rig], work: Work, *, repeat: int) -> dict[str, list[LoadFigures]]:
    """By variant; the first run of each does not count. Raises PacelineError where a request fails."""

    def measure(rig: Rig, ask: Callable[[], Run]) -> LoadFigures:
        before_s = rig.router.usage().cpu_s
        run = ask()
        cpu_s = rig.router.usage().cpu_s - before_s
        num_messages = sum(len(outcome.arrivals) for outcome in run.outcomes)
        return LoadFigures(
            seconds=run.seconds,
            tokens_per_s=run.tokens_per_s,
            num_messages=num_messages,
            num_tokens=run.output_tokens,
            cpu_s=cpu_s,
            client_busy=run.client_busy or 0.0,
            first_token_ms=1e3 * statistics.median(done.first_token_s for done in run.completions),
        )

    return _interleaved(rigs, work, measure, repeat=repeat)


def first_token_runs(rigs: Sequence[Rig], work: Work, *, repeat: int) -> dict[str, list[float]]:
    """By variant, for each request: ms from its leave at the client to its first token there, less the time that a
    target without a model held it. Raises PacelineError where a request fails."""

    def measure(rig: Rig, ask: Callable[[], Run]) -> list[float]:
        seen = [(done.request_id, done.first_token_s) for done in ask().completions]
        held_s = rig.held_s()
        return [1e3 * (first_s - held_s.get(request_id, 0.0)) for request_id, first_s in seen]

    runs = _interleaved(rigs, work, measure, repeat=repeat)
    return {name: [ms for run in its_runs for ms in run] for name, its_runs in runs.items()}


def _interleaved(
    rigs: Sequence[Rig], work: Work, measure: Callable[[Rig, Callable[[], Run]], FiguresT], *, repeat: int
) -> dict[str, list[FiguresT]]:
    """The order turns around each time: what else the machine does then hits all alike."""
    figures: dict[str, list[FiguresT]] = {rig.dress.name: [] for rig in rigs}
    with contextlib.ExitStack() as stack:
        pairs = [
            (rig, stack.enter_context(LoadGenerator(_workload(rig, work), work.num_processes, counts_on=True)))
            for rig in rigs
        ]
        for _, generator in pairs:  # connections, and the first use of all code
            _ask(generator, work, min(work.num_requests, work.num_streams))
        for i in range(repeat):
            for rig, generator in pairs if i % 2 == 0 else reversed(pairs):
                ask = functools.partial(_ask, generator, work, work.num_requests)
                figures[rig.dress.name].append(measure(rig, ask))
    return figures


def _ask(generator: LoadGenerator, work: Work, num_requests: int) -> Run:
    run = generator.run(
        work.variant, num_requests, concurrency=work.num_streams, repeat=0, on_progress=lambda started: None
    )
    if run.errors:
        raise PacelineError(f"{len(run.errors)} requests failed, the first with {run.errors[0]}")
    return run


def _workload(rig: Rig, work: Work) -> Workload:
    sampling = Sampling(max_tokens=work.max_tokens, temperature=0.0, seed=0)
    return Workload(rig.router.address, work.prompts, (sampling,) * len(work.prompts), rig.dress.credentials)
