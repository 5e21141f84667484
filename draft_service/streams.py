"""Where answers wait for their streams: merged for a slow peer, never dropped, never without bound."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from draft_service.replies import Replies, SessionReply, StreamReplies, SyncReply, each_reply
from paceline.errors import CapacityError, UnavailableError


class WaitingReplies:
    """Answers of one round stream. Of a session that to the newest round stands, and that to its open beside it."""

    def __init__(self, max_replies: int) -> None:
        self._max_replies = max_replies
        self._newest: StreamReplies = []  # what was put last, merged with the others once more comes
        self._replies: dict[tuple[int, bool], SessionReply] = {}

    def put(self, replies: StreamReplies) -> None:
        """Raises CapacityError past max_replies: answers to ever new unknown sessions."""
        self._merge()
        self._newest = list(replies)
        if len(self._replies) + len(replies) > self._max_replies:
            self._merge()
        if len(self._replies) > self._max_replies:
            raise CapacityError(f"{len(self._replies)} answers wait for this stream; read them before asking more")

    def take(self) -> StreamReplies:
        """All of them, which wait no longer."""
        if self._replies:
            self._merge()
        taken = [*self._replies.values(), *self._newest]
        self._newest, self._replies = [], {}
        return taken

    def _merge(self) -> None:
        for reply in each_reply(self._newest):
            place = (reply.session, reply.round == 0)
            waiting = self._replies.get(place)
            if waiting is None or waiting.round <= reply.round:
                self._replies[place] = reply
        self._newest = []


class Outbox:
    """Where answers wait for a stream's writing half. Where too many wait, ``take`` raises CapacityError."""

    def __init__(self, max_replies: int) -> None:
        self._max_replies = max_replies
        self._replies = WaitingReplies(max_replies)
        self._wake = asyncio.Event()
        self._error: BaseException | None = None
        self._ended = False

    def put(self, replies: StreamReplies) -> None:
        try:
            self._replies.put(replies)
        except CapacityError as error:
            self.fail(error)
        self._wake.set()

    def end(self) -> None:
        """``take`` gives what waits, then None."""
        self._ended = True
        self._wake.set()

    def fail(self, error: BaseException) -> None:
        """``take`` raises the error from now on."""
        self._error = self._error or error
        self._wake.set()

    async def take(self) -> StreamReplies | None:
        """All that waits, at least one answer; None after the end."""
        await self._wake.wait()
        if self._error is not None:
            raise self._error
        replies = self._replies.take()
        if not replies:
            return None
        if not self._ended:
            self._wake.clear()
        return replies


class StreamHub:
    """Hands an engine's answers to the streams that wait for them. Event loop only."""

    def __init__(self, max_replies: int) -> None:
        self._max_replies = max_replies
        self._outboxes: dict[int, Outbox] = {}
        self._tickets: dict[int, asyncio.Future[SyncReply]] = {}
        self._numbers = itertools.count(1)
        self._closed: BaseException | None = None

    def open_stream(self) -> tuple[int, Outbox]:
        """A number for a new round stream, and where its answers come."""
        number, outbox = next(self._numbers), Outbox(self._max_replies)
        if self._closed is not None:
            outbox.fail(self._closed)
        self._outboxes[number] = outbox
        return number, outbox

    def close_stream(self, number: int) -> None:
        """Answers that come later are dropped, for nobody is there."""
        del self._outboxes[number]

    def new_ticket(self) -> tuple[int, asyncio.Future[SyncReply]]:
        """A number for a message of bulk rows, and its answer to come."""
        number, future = next(self._numbers), asyncio.get_running_loop().create_future()
        if self._closed is not None:
            future.set_exception(self._closed)
        self._tickets[number] = future
        future.add_done_callback(lambda _: self._tickets.pop(number, None))
        return number, future

    def deliver(self, replies: Replies) -> None:
        for number, session_replies in replies.by_stream.items():
            outbox = self._outboxes.get(number)
            if outbox is not None:
                outbox.put(session_replies)
        self._deliver_syncs(replies.syncs)

    def end_streams(self) -> None:
        """Lets all round streams end once their peers have taken what waits."""
        for outbox in self._outboxes.values():
            outbox.end()

    def fail(self, message: str) -> None:
        """Ends every stream, now and later, with UNAVAILABLE."""
        self._closed = UnavailableError(message)
        for outbox in self._outboxes.values():
            outbox.fail(self._closed)
        for future in list(self._tickets.values()):
            if not future.done():
                future.set_exception(self._closed)

    def _deliver_syncs(self, syncs: Sequence[SyncReply]) -> None:
        for reply in syncs:
            future = self._tickets.get(reply.ticket)
            if future is not None and not future.done():
                future.set_result(reply)
