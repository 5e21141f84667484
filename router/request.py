"""A client's request after all checks: trusted from here on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from paceline.errors import InvalidInputError
from paceline.types import SamplingParams
from router.policy import Override

MAX_PRIORITY = 10
MAX_TENANT_LEN = 128


@dataclass(frozen=True, slots=True)
class Terms:
    """How a request wants to be served: for whom, before which of the tenant's others, and in what time.

    The highest priority leaves the queue first. deadline_s: from its arrival to its last token; None: it has no hurry.
    Raises InvalidInputError.
    """

    tenant: str = ""
    priority: int = 0
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        if len(self.tenant) > MAX_TENANT_LEN:
            raise InvalidInputError(f"tenant has {len(self.tenant)} characters; it must have at most {MAX_TENANT_LEN}")
        if abs(self.priority) > MAX_PRIORITY:
            raise InvalidInputError(f"priority is {self.priority}; it must be -{MAX_PRIORITY} to {MAX_PRIORITY}")
        if self.deadline_s is not None and not 0 < self.deadline_s < math.inf:
            raise InvalidInputError(f"deadline_s is {self.deadline_s:g}; it must be a finite number above 0")


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """What one Generate call asks for. The seed is always set, so that a replay draws the same tokens."""

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    override: Override = field(default_factory=Override)
    terms: Terms = field(default_factory=Terms)
    skip_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class Limits:
    """What the fleet's model takes: ids below vocab_size; prompt and output together within context_length tokens.

    context_length 0: no target has said yet.
    """

    vocab_size: int
    context_length: int

    def check_prompt_len(self, prompt_len: int, *, exact: bool = True) -> None:
        """Raises InvalidInputError where the prompt is empty or leaves no room for a token.

        Not exact: prompt_len is the least that it can be.
        """
        if prompt_len == 0:
            raise InvalidInputError("the prompt is empty; send at least one token of text, token_ids or chat")
        if self.context_length and prompt_len >= self.context_length:
            least = "" if exact else "at least "
            raise InvalidInputError(
                f"the prompt has {least}{prompt_len} tokens; a context of {self.context_length} leaves room for "
                f"{self.context_length - 1}: shorten the prompt, or start targets with a larger --context-length"
            )
