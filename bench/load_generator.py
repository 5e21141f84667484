"""The load generator: client processes that keep a number of requests in flight together."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import wait
from types import TracebackType
from typing import Self

from bench.client_process import ClientProcess, Share
from bench.outcome import Run, steady_part
from bench.tickets import Tickets
from bench.workload import Variant, Workload
from paceline.threads import num_cores

_PROGRESS_INTERVAL_S = 0.2
_STREAMS_A_PROCESS = 32


class LoadGenerator:
    """Owns num_processes client processes, started at once, before anything is measured. Used by one thread."""

    def __init__(self, workload: Workload, num_processes: int) -> None:
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
        self._tickets.refill(num_requests)
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
        outcomes = tuple(merged[number] for number in range(num_requests))
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
