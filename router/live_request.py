"""A request between its admission and its last message: what came, what the client took, how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.errors import CapacityError, PacelineError
from paceline.stats import SpeculationStats
from paceline.types import FinishReason, SpeculationDecision
from router.attempt_rounds import AttemptRounds
from router.placement import Demand
from router.queue import Claim
from router.request import ClientRequest
from router.request_trace import NO_TRACE, RequestTrace
from router.stream_pacer import StreamPacer

if TYPE_CHECKING:
    from router.target_link import TargetLink


class DeltaGapError(PacelineError):
    """A target left tokens out: an error of its own, which a replay makes good."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """Of a request at the servicer; both times are on the loop's clock."""

    at: float
    deadline: float | None = None
    trace: RequestTrace = NO_TRACE


_NO_STATS = SpeculationStats()


@dataclass(frozen=True, slots=True, eq=False)
class Flight:
    """One attempt: the target's link, the request's number on its stream, and the decision sent last."""

    link: TargetLink
    number: int
    decision: SpeculationDecision


class LiveRequest:
    """Links and dispatcher put tokens and the end in; one servicer call takes them out.

    emitted[0, taken) has gone to the client, emitted[taken, ...) waits for it. Ended once outcome is set:
    a reason, or the error to answer with. Nothing is accepted past the end.
    """

    __slots__ = (
        "_begun_len",
        "_buffer_tokens",
        "_held",
        "_pacer",
        "_waiter",
        "attempt",
        "avoid",
        "barren_attempts",
        "claim",
        "deadline",
        "deadline_timer",
        "draft",
        "emitted",
        "flight",
        "max_tokens",
        "model_fingerprint",
        "outcome",
        "queue_timer",
        "queued_at",
        "request",
        "rounds",
        "started_at",
        "stats",
        "stop_ids",
        "submitted_at",
        "taken",
        "taken_at",
        "trace",
        "untaken_steps",
    )

    def __init__(self, request: ClientRequest, arrival: Arrival, *, pacer: StreamPacer, buffer_tokens: int) -> None:
        self.request = request
        self.emitted: list[int] = []
        self.taken = 0
        self.outcome: FinishReason | PacelineError | None = None
        self.stats = _NO_STATS  # of the attempts that are over
        self.rounds = AttemptRounds()  # of the one under way
        self.stop_ids = frozenset(request.sampling.stop_token_ids)  # the target's end tokens join at placement
        self.attempt = 0
        self.barren_attempts = 0  # attempts since the last new token
        self.avoid = ""  # the target that failed or returned it last
        self.model_fingerprint = ""  # of the target that began it
        self.max_tokens = request.sampling.max_tokens  # clipped to the target's context at placement
        self.draft = ""  # that its decision names
        self.flight: Flight | None = None
        self.claim: Claim | None = None  # on the queue, where it had to wait
        self.deadline = arrival.deadline
        self.deadline_timer: asyncio.TimerHandle | None = None  # while it has one
        self.queue_timer: asyncio.TimerHandle | None = None  # while it waits in the queue
        self.submitted_at: float | None = None  # the first time
        self.started_at = arrival.at
        self.queued_at = arrival.at
        self.taken_at = arrival.at  # the last time
        self.trace = arrival.trace
        self.untaken_steps = 0  # that gave the tokens not taken yet
        self._begun_len = 0  # tokens before the attempt under way
        self._held = False  # they wait for more
        self._pacer = pacer
        self._buffer_tokens = buffer_tokens
        self._waiter: asyncio.Future[None] | None = None

    @property
    def demand(self) -> Demand:
        """What it asks of a target."""
        request = self.request
        return Demand(len(request.prompt_ids), request.sampling.max_tokens, self.model_fingerprint, self.avoid)

    def attempt_begins(self) -> None:
        """It goes to a target."""
        self.rounds = AttemptRounds()
        self._begun_len = len(self.emitted)

    def attempt_ends(self, stats: SpeculationStats | None) -> None:
        """It has left its target. stats: what that counted; None: what it told until then counts."""
        self.stats += self.rounds.stats(len(self.emitted) - self._begun_len) if stats is None else stats

    def accept(self, offset: int, tokens: Sequence[int]) -> int:
        """Takes a delta whose first token has this index in the output; returns how many of its tokens were new.

        What an earlier attempt gave is dropped: the client may have it. Raises DeltaGapError where tokens are
        missing before it and CapacityError where the client has left too many untaken.
        """
        emitted = self.emitted
        seen = len(emitted) - offset
        if seen:
            if seen < 0:
                raise DeltaGapError(f"a delta starts at token {offset}, but only {len(emitted)} came before it")
            tokens = tokens[seen:]
            if not tokens:
                return 0
        emitted += tokens
        self.barren_attempts = 0
        if len(emitted) - self.taken > self._buffer_tokens:
            raise CapacityError(
                f"the client left {len(emitted) - self.taken} tokens untaken, more than the {self._buffer_tokens} that "
                "are kept for it; read faster or raise --client-buffer-tokens"
            )
        self.untaken_steps += 1
        self._held = self._pacer.holds(self)
        if not self._held:
            self._wake()
        return len(tokens)

    def end(self, outcome: FinishReason | PacelineError) -> None:
        """Sets the outcome; a second one is ignored."""
        if self.outcome is None:
            self.outcome = outcome
            self._wake()

    def release(self) -> None:
        """What is held waits no longer."""
        self._held = False
        self._wake()

    async def wait(self) -> None:
        """Returns once there is a token to take that may not wait, or an outcome. For one waiter."""
        if self.outcome is None and (self._held or self.taken == len(self.emitted)):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def take(self) -> list[int]:
        """The tokens since the last call."""
        tokens = self.emitted[self.taken :]
        if tokens and not self.taken:
            self._pacer.start()
        self.taken = len(self.emitted)
        self.taken_at = self._pacer.sent(self)
        self.untaken_steps = 0
        self._held = False
        return tokens

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
