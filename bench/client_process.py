"""A process of the load generator, with a channel and an event loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext

from bench.closed_loop import ClosedLoop
from bench.outcome import Outcome
from bench.tickets import Tickets
from bench.timed_loop import TimedLoop, TimedShare
from bench.workload import Variant, Workload
from client.aio import AsyncPacelineClient
from paceline.errors import PacelineError


@dataclass(frozen=True, slots=True)
class Share:
    """What one process does of a run of a number of requests."""

    variant: Variant
    num_streams: int


@dataclass(frozen=True, slots=True)
class ShareDone:
    outcomes: dict[int, Outcome]  # by ticket
    busy: float  # share of a core that the process used


class ClientProcess:
    """Owns the process: ``close`` it. A run goes ``prepare``, ``start``, ``result``; one by the clock ``prepare``,
    ``start``, ``wait_ready``, ``start_clock``, ``result``."""

    def __init__(self, context: SpawnContext, workload: Workload, tickets: Tickets) -> None:
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, workload, tickets), daemon=True)
        self._process.start()
        theirs.close()

    def prepare(self, share: Share | TimedShare) -> None:
        """Returns once the process waits for ``start``. Raises PacelineError where it has died."""
        self._send(share)
        self._receive()

    def start(self) -> None:
        self._send(None)

    def wait_ready(self) -> None:
        """Until its part of the load runs. Raises PacelineError where the process has died."""
        self._receive()

    def start_clock(self, at_s: float) -> None:
        """On the monotonic clock."""
        self._send(at_s)

    def result(self) -> ShareDone:
        """Blocks. Raises PacelineError where the process has died."""
        done = self._receive()
        assert isinstance(done, ShareDone)
        return done

    def close(self) -> None:
        """Ends it, and waits until it is gone."""
        self.connection.close()
        self._process.terminate()
        self._process.join()

    def _send(self, message: Share | TimedShare | float | None) -> None:
        with contextlib.suppress(BrokenPipeError):  # the next receive says so
            self.connection.send(message)

    def _receive(self) -> object:
        try:
            return self.connection.recv()
        except (EOFError, ConnectionError) as error:
            self._process.join()
            raise PacelineError(f"a client process ended with exit code {self._process.exitcode}") from error


def _serve(connection: Connection, workload: Workload, tickets: Tickets) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends this process
    with contextlib.suppress(EOFError, ConnectionError):  # the parent has gone
        asyncio.run(_obey(connection, workload, tickets))


async def _obey(connection: Connection, workload: Workload, tickets: Tickets) -> None:
    async def ready() -> float:
        connection.send(None)
        at_s: float = await asyncio.to_thread(connection.recv)
        return at_s

    async with AsyncPacelineClient(workload.address, credentials=workload.credentials) as client:
        loop = ClosedLoop(client, workload)
        while True:
            share = await asyncio.to_thread(connection.recv)
            await client.info()  # connects
            connection.send(None)
            await asyncio.to_thread(connection.recv)
            started_s, cpu_s = time.monotonic(), time.process_time()
            if isinstance(share, TimedShare):
                outcomes = await TimedLoop(client, workload, share).run(ready)
            else:
                outcomes = await loop.run(share.variant, tickets, num_streams=share.num_streams)
            busy = (time.process_time() - cpu_s) / (time.monotonic() - started_s)
            connection.send(ShareDone(outcomes, busy))
