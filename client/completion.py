"""What a request gave: deltas as they come, and the whole at its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.codec import decode_finish_reason, decode_stats
from paceline.errors import WireError
from paceline.stats import SpeculationStats
from paceline.types import FinishReason
from paceline.v1 import common_pb2, router_pb2


@dataclass(frozen=True, slots=True)
class Delta:
    """Text and tokens since the last delta. Either may be empty: text waits for whole code points."""

    text: str
    token_ids: tuple[int, ...]
    offset: int  # index of the first token in the output


@dataclass(frozen=True, slots=True)
class Completion:
    """A request that came to its end. Times are seconds since it was sent, as the client saw them."""

    request_id: str
    text: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: SpeculationStats
    first_token_s: float
    last_token_s: float

    @property
    def tokens_per_s(self) -> float | None:
        """Of decoding alone: from the first token to the last; None for fewer than two tokens."""
        elapsed_s, num_later = self.last_token_s - self.first_token_s, len(self.token_ids) - 1
        return num_later / elapsed_s if num_later > 0 and elapsed_s > 0 else None


@dataclass(slots=True)
class Assembly:
    """Puts a Generate stream's messages together."""

    clock: Callable[[], float]
    started_s: float
    prompt_ids: tuple[int, ...] = ()
    token_ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    last: router_pb2.GenerateResponse | None = None

    def add(self, message: router_pb2.GenerateResponse) -> Delta:
        """Raises WireError where tokens are missing or come twice."""
        if message.token_ids:
            if message.offset != len(self.token_ids):
                raise WireError(f"tokens from {message.offset} on came where {len(self.token_ids)} were held")
            self.last_token_s = self.clock() - self.started_s
            if not self.token_ids:
                self.first_token_s = self.last_token_s
        if message.prompt_ids:
            self.prompt_ids = tuple(message.prompt_ids)
        delta = Delta(message.text, tuple(message.token_ids), len(self.token_ids))
        self.token_ids.extend(message.token_ids)
        self.texts.append(message.text)
        if message.finish_reason != common_pb2.FINISH_REASON_UNSPECIFIED:
            self.last = message
        return delta

    def completion(self) -> Completion:
        """The whole, once the stream has ended. Raises WireError where it ended early or counts disagree."""
        if self.last is None:
            raise WireError("the stream ended without a finish reason; the router broke off")
        counted = self.last.usage.completion_tokens
        if counted != len(self.token_ids):
            raise WireError(f"the router counts {counted} tokens and sent {len(self.token_ids)}")
        return Completion(
            request_id=self.last.request_id,
            text="".join(self.texts),
            prompt_ids=self.prompt_ids,
            token_ids=tuple(self.token_ids),
            finish_reason=decode_finish_reason(self.last.finish_reason),
            stats=decode_stats(self.last.stats),
            first_token_s=self.first_token_s,
            last_token_s=self.last_token_s,
        )
