"""A request as Python values, and the message that it becomes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from paceline.codec import encode_tree_shape
from paceline.errors import InvalidInputError
from paceline.types import SamplingParams, TreeShape
from paceline.v1 import common_pb2, router_pb2


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat. role is "system", "user", "assistant", or what the model's template knows."""

    role: str
    content: str


Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]
"""Text as it stands, token ids, or chat messages for the model's template."""

Speculation: TypeAlias = TreeShape | Literal[False] | None
"""This tree, plain decoding (False), or what the router's policy says (None)."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn and when the request ends; None leaves a value to the service.

    The ranges are those of paceline.types.SamplingParams. Raises InvalidInputError.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        SamplingParams(**self.given())

    def given(self) -> dict[str, Any]:
        """The fields that are not left to the service."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """What a request may carry besides prompt and sampling.

    The highest priority (-10 to 10) of a tenant's requests leaves the router's queue first. deadline_s: seconds to the
    last token; a request that cannot be done in them ends with DeadlineError, or CapacityError where the queue is why.
    """

    speculation: Speculation = None
    request_id: str = ""
    skip_special_tokens: bool = True
    tenant: str = ""
    priority: int | None = None
    deadline_s: float | None = None


def build_request(prompt: Prompt, sampling: Sampling, options: GenerateOptions) -> router_pb2.GenerateRequest:
    """Raises InvalidInputError for a value that does not fit its field."""
    try:
        request = router_pb2.GenerateRequest(
            sampling_params=common_pb2.SamplingParams(**sampling.given()),
            request_id=options.request_id,
            skip_special_tokens=options.skip_special_tokens,
            tenant=options.tenant or None,
            priority=options.priority,
            deadline_s=options.deadline_s,
        )
        _set_prompt(request, prompt)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"a value of the request does not fit its field: {error}") from error
    if options.speculation is False:
        request.speculation.disable = True
    elif options.speculation is not None:
        request.speculation.shape.CopyFrom(encode_tree_shape(options.speculation))
    return request


def _set_prompt(request: router_pb2.GenerateRequest, prompt: Prompt) -> None:
    if isinstance(prompt, str):
        request.text = prompt
        return
    turns = [part for part in prompt if isinstance(part, Message)]
    ids = [part for part in prompt if not isinstance(part, Message)]
    if turns and ids:
        raise InvalidInputError("a prompt mixes chat messages and token ids; send one kind")
    if turns:
        messages = [router_pb2.ChatMessage(role=turn.role, content=turn.content) for turn in turns]
        request.chat.CopyFrom(router_pb2.ChatMessages(messages=messages))
    else:
        request.token_ids.CopyFrom(router_pb2.TokenIds(ids=ids))
