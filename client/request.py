"""A request as Python values, and the message that it becomes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from client.fit import is_number, is_whole, require_fit, require_text
from paceline.codec import encode_tree_shape
from paceline.errors import InvalidInputError
from paceline.types import SamplingParams, TreeShape
from paceline.v1 import common_pb2, router_pb2


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat. role is "system", "user", "assistant", "tool", or another that the model's template names."""

    role: str
    content: str


Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]
"""Text as it stands, token ids, or chat messages for the model's template."""

Speculation: TypeAlias = TreeShape | Literal[False] | None
"""This tree, plain decoding (False), or what the router's policy says (None)."""

_TOKEN_ID = "a token id, a whole number from 0 to 2**32 - 1"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn and when the request ends; None leaves a value to the service.

    The ranges are those of paceline.types.SamplingParams. Raises InvalidInputError, naming the field.
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
        for name, bits in (("max_tokens", 32), ("top_k", 32), ("seed", 64)):
            value = getattr(self, name)
            require_fit(value is None or is_whole(value, bits=bits), name, value, f"a whole number below 2**{bits}")
        for name in ("temperature", "top_p", "min_p"):
            value = getattr(self, name)
            require_fit(value is None or is_number(value), name, value, "a number")
        ids = self.stop_token_ids
        require_fit(isinstance(ids, tuple | list), "stop_token_ids", ids, "a tuple of token ids")
        _require_token_ids(ids, "stop_token_ids", _TOKEN_ID)
        require_fit(isinstance(self.ignore_eos, bool), "ignore_eos", self.ignore_eos, "True or False")
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
    Raises InvalidInputError, naming the field.
    """

    speculation: Speculation = None
    request_id: str = ""
    skip_special_tokens: bool = True
    tenant: str = ""
    priority: int | None = None
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        fits = self.speculation is None or self.speculation is False or isinstance(self.speculation, TreeShape)
        expected = "None (as the router decides), False (plain decoding) or a TreeShape"
        require_fit(fits, "speculation", self.speculation, expected)
        require_text(self.request_id, "request_id")
        require_text(self.tenant, "tenant")
        skip = self.skip_special_tokens
        require_fit(isinstance(skip, bool), "skip_special_tokens", skip, "True or False")
        is_level = self.priority is None or is_whole(self.priority, bits=31)
        require_fit(is_level, "priority", self.priority, "a whole number, -10 to 10")
        fits = self.deadline_s is None or is_number(self.deadline_s)
        require_fit(fits, "deadline_s", self.deadline_s, "a number of seconds")


def build_request(
    prompt: Prompt, sampling: Sampling | None, options: GenerateOptions | None
) -> router_pb2.GenerateRequest:
    """Raises InvalidInputError, naming the field, for a value that does not fit."""
    sampling, options = Sampling() if sampling is None else sampling, GenerateOptions() if options is None else options
    require_fit(isinstance(sampling, Sampling), "sampling", sampling, "a client.Sampling")
    require_fit(isinstance(options, GenerateOptions), "options", options, "a client.GenerateOptions")
    request = router_pb2.GenerateRequest(
        sampling_params=common_pb2.SamplingParams(**sampling.given()),
        request_id=options.request_id,
        skip_special_tokens=options.skip_special_tokens,
        tenant=options.tenant or None,
        priority=options.priority,
        deadline_s=options.deadline_s,
    )
    _set_prompt(request, prompt)
    if options.speculation is False:
        request.speculation.disable = True
    elif options.speculation is not None:
        request.speculation.shape.CopyFrom(encode_tree_shape(options.speculation))
    return request


def _set_prompt(request: router_pb2.GenerateRequest, prompt: Prompt) -> None:
    if isinstance(prompt, str):
        require_text(prompt, "prompt")
        request.text = prompt
        return
    is_list = isinstance(prompt, Iterable) and not isinstance(prompt, bytes | bytearray | Mapping)
    require_fit(is_list, "prompt", prompt, "a str, or a list of token ids or of client.Message")
    parts: list[Any] = list(prompt)
    num_turns = sum(isinstance(part, Message) for part in parts)
    if not num_turns:
        _require_token_ids(parts, "prompt", f"a client.Message or {_TOKEN_ID}")
        request.token_ids.CopyFrom(router_pb2.TokenIds(ids=parts))
        return
    if num_turns < len(parts):
        raise InvalidInputError("a prompt mixes chat messages with something else; send one kind")
    for index, turn in enumerate(parts):
        require_text(turn.role, f"prompt[{index}].role")
        require_text(turn.content, f"prompt[{index}].content")
    messages = [router_pb2.ChatMessage(role=turn.role, content=turn.content) for turn in parts]
    request.chat.CopyFrom(router_pb2.ChatMessages(messages=messages))


def _require_token_ids(ids: Sequence[Any], name: str, expected: str) -> None:
    for index, token_id in enumerate(ids):
        if not is_whole(token_id, bits=32) or token_id < 0:
            require_fit(False, f"{name}[{index}]", token_id, expected)
