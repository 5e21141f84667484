"""RoundLanes: the streams whose rounds travel beside them, straight to the engine's thread and from it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from draft_service.codec import RoundDecoder, pack_replies
from draft_service.events import Event, RoundMessage
from draft_service.lane_door import LaneDoor, LaneOffer
from draft_service.replies import Replies, StreamReplies
from draft_service.streams import Outbox, WaitingReplies
from paceline.errors import UnavailableError
from paceline.lane import Lane
from paceline.mailbox import Source
from paceline.rpc_bytes import LaneBytes

UsedLane: TypeAlias = "Lane[RoundMessage, StreamReplies | WaitingReplies]"


@dataclass(frozen=True, slots=True)
class RoundStream:
    """What a lane needs to know of the stream that it belongs to."""

    decoder: RoundDecoder
    post: Callable[[Event], None]  # to the engine
    outbox: Outbox  # which ends with the lane


@dataclass(frozen=True, slots=True)
class LaneTerms:
    """What all lanes of a draft share."""

    incarnation: int
    max_replies: int  # that wait for a slow target
    count: LaneBytes
    watch: Callable[[Source], None]  # of the engine thread's mailbox


class RoundLanes:
    """Event loop only, but for ``answer``, which is the engine thread's."""

    def __init__(self, terms: LaneTerms) -> None:
        self._terms = terms
        self._door: LaneDoor | None = None
        self._used: dict[int, UsedLane] = {}  # by stream; the engine's thread adds, the event loop removes

    def open_door(self, host: str, port: int) -> int:
        """Until then streams are offered no lane. Returns the port. Raises ConfigError where it is taken."""
        self._door = LaneDoor(host, port)
        return self._door.port

    async def close(self) -> None:
        if self._door is not None:
            await self._door.close()

    @contextlib.contextmanager
    def offered(self, stream: RoundStream) -> Iterator[LaneOffer | None]:
        """A lane for the stream, whose end is the lane's: nothing is posted after that."""
        if self._door is None:
            yield None
            return
        lane = RoundLane(stream, self._terms, self._used)
        offer = self._door.offer(lane.take)
        try:
            yield offer
        finally:
            self._door.withdraw(offer)
            lane.close()

    def answer(self, replies: Replies) -> Replies | None:
        """Sends what is for streams with a lane; returns what is left, None for nothing. Never waits."""
        rest: dict[int, StreamReplies] = {}
        for stream, part in replies.by_stream.items():
            lane = self._used.get(stream)
            if lane is None:
                rest[stream] = part
            else:
                lane.send(part)
        return Replies(rest, replies.syncs) if rest or replies.syncs else None


class RoundLane:
    """A lane's user, see paceline.lane: answers go by it once the target has asked by it."""

    def __init__(self, stream: RoundStream, terms: LaneTerms, used: dict[int, UsedLane]) -> None:
        """used: where the lane stands from the first message on."""
        self.decode = stream.decoder.parse
        self._stream = stream
        self._number = stream.decoder.stream
        self._terms = terms
        self._used = used
        self._event_loop = asyncio.get_running_loop()
        self._lane: UsedLane | None = None

    def take(self, sock: socket.socket) -> None:
        """Begins, on a connection that has shown the token."""
        self._lane = Lane(sock, self, self._terms.count, name=f"lane of stream {self._number}")
        self._lane.start(self._terms.watch)

    def close(self) -> None:
        if self._lane is not None:
            self._lane.close()
        self._used.pop(self._number, None)

    def deliver(self, event: RoundMessage) -> None:
        assert self._lane is not None
        self._used[self._number] = self._lane
        self._stream.post(event)

    def encode(self, item: StreamReplies | WaitingReplies) -> tuple[bytes]:
        replies = item.take() if isinstance(item, WaitingReplies) else item
        return (pack_replies(replies, self._terms.incarnation),)

    def merge(
        self, waiting: StreamReplies | WaitingReplies | None, item: StreamReplies | WaitingReplies
    ) -> WaitingReplies:
        pile = waiting if isinstance(waiting, WaitingReplies) else WaitingReplies(self._terms.max_replies)
        pile.put(item.take() if isinstance(item, WaitingReplies) else item)
        return pile

    def ended(self, error: Exception) -> None:
        with contextlib.suppress(RuntimeError):  # the service ends, and its event loop is closed
            self._event_loop.call_soon_threadsafe(self._on_end, error)

    def _on_end(self, error: Exception) -> None:
        """A target that gives up a lane before it asked anything by it stays with its stream."""
        is_gone = isinstance(error, UnavailableError)
        if not is_gone:
            self._stream.outbox.fail(error)
        elif self._number in self._used:
            self._stream.outbox.end()
