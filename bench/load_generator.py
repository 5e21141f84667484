"""The load generator: client processes that keep a number of requests in flight together."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from types import TracebackType
from typing import Self

from bench.client_process import ClientProcess, Share
from bench.load import Load
from bench.outcome import Run, steady_part
from bench.tickets import Tickets
from bench.timed_loop import TimedShare
from bench.timed_run import TimedRun
from bench.workload import Variant, Workload
from paceline.threads import num_cores

_PROGRESS_INTERVAL_S = 0.2
_STREAMS_A_PROCESS = 32


class LoadGenerator:
    """Owns num_processes client processes, started at once, before anything is measured. Used by one thread.

    counts_on: a run's requests are numbered on from those of the run before, not from 0 again, and have other prompts.
    """

    def __init__(self, workload: Workload, num_processes: int, *, counts_on: bool = False) -> None:
        self._counts_on = counts_on
        self._first_number = 0
        context = multiprocessing.get_context("spawn")  # gRPC does not outlive a fork
        self._tickets = Tickets(context)
        self._processes = [ClientProcess(context, workload, self._tickets) for _ in range(num_processes)]

    def run(
        self, variant: Variant, num_requests: int, *, concurrency: int, repeat: int, on_progress: Callable[[int], None]
    ) -> Run:
        """Sends num_requests with concurrency in flight; on_progress takes the number of those started so far.

        Raises PacelineError where a client process dies.
        """
        streams = min(concurrency, num_requests)
        used = self._processes[:streams]
        first = self._first_number
        if self._counts_on:
            self._first_number += num_requests
        self._tickets.refill(num_requests, first=first)
        for i, process in enumerate(used):
            share = streams * (i + 1) // len(used) - streams * i // len(used)
            process.prepare(Share(variant, share))
        for process in used:
            process.start()
        waiting = {process.connection for process in used}
        while waiting:
            waiting.difference_update(wait(list(waiting), timeout=_PROGRESS_INTERVAL_S))
            on_progress(self._tickets.num_taken)
        done = [process.result() for process in used]
        merged = {number: outcome for part in done for number, outcome in part.outcomes.items()}
        outcomes = tuple(merged[number] for number in range(first, first + num_requests))
        return Run(
            variant.mode,
            repeat,
            concurrency,
            max(outcome.ended_s for outcome in outcomes) - min(outcome.sent_s for outcome in outcomes),
            outcomes,
            variant.shape,
            steady_part(outcomes, concurrency, exhausted_s=self._tickets.exhausted_s),
            max(part.busy for part in done),
        )

    def play(self, variant: Variant, load: Load, *, first_number: int, seed: int) -> TimedRun:
        """Asks as the load says; requests are numbered from first_number on. seed: of an open loop's arrivals.

        Raises PacelineError where a client process dies.
        """
        used = self._processes if load.is_open else self._processes[: round(load.most)]
        for i, process in enumerate(used):
            process.prepare(TimedShare(variant, load, i, len(used), first_number, seed))
        for process in used:
            process.start()
        for process in used:
            process.wait_ready()
        began_s = time.monotonic()
        for process in used:
            process.start_clock(began_s)
        done = [process.result() for process in used]
        outcomes = {number: outcome for part in done for number, outcome in part.outcomes.items()}
        return TimedRun(variant, load, dict(sorted(outcomes.items())), began_s, max(part.busy for part in done))

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def processes_for(concurrency: int) -> int:
    """As many as keep each far from a full core, and leave the services half of the machine."""
    return max(1, min(-(-concurrency // _STREAMS_A_PROCESS), num_cores() // 2))
