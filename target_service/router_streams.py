"""RouterStreams: the event loop's end of the Serve streams."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

from paceline.mailbox import Mailbox
from target_service.emission import StreamBatch
from target_service.events import Event, StreamClosed, StreamOpened


class RouterStream:
    """What one router has not taken yet, merged into one batch. Event loop only."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._pending: StreamBatch | None = None
        self._error: Exception | None = None
        self._ended = False
        self._wake = asyncio.Event()

    def push(self, batch: StreamBatch) -> None:
        if self._pending is None:
            self._pending = batch
        else:
            self._pending.merge(batch)
        self._wake.set()

    def end(self, error: Exception | None = None) -> None:
        """No more batches; error: what the router did wrong."""
        self._ended = True
        self._error = self._error or error
        self._wake.set()

    async def batches(self) -> AsyncIterator[StreamBatch]:
        """Batches as they come, until the end. Raises the error that the stream ended with."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch, self._pending = self._pending, None
            if batch is not None:
                yield batch
            if self._error is not None:
                raise self._error
            if self._ended and self._pending is None:
                return


class RouterStreams:
    """All open streams. Event loop only."""

    def __init__(self, mailbox: Mailbox[Event]) -> None:
        self._mailbox = mailbox
        self._streams: dict[int, RouterStream] = {}
        self._numbers = itertools.count(1)

    def open(self) -> RouterStream:
        """The engine thread answers with the stream's credits."""
        stream = RouterStream(next(self._numbers))
        self._streams[stream.number] = stream
        self._mailbox.put(StreamOpened(stream.number))
        return stream

    def close(self, stream: RouterStream) -> None:
        """The stream's requests are cancelled."""
        del self._streams[stream.number]
        self._mailbox.put(StreamClosed(stream.number))

    def push(self, batches: dict[int, StreamBatch]) -> None:
        """Batches for streams that have closed since are dropped."""
        for number, batch in batches.items():
            stream = self._streams.get(number)
            if stream is not None:
                stream.push(batch)

    def end_all(self, error: Exception | None = None) -> None:
        """Every stream ends once what is pending was taken, with the error's status if there is one."""
        for stream in self._streams.values():
            stream.end(error)
