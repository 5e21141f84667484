"""GenerateRequest to a checked ClientRequest, and what comes back to GenerateResponse."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from paceline.chat_template import ChatTemplate
from paceline.codec import decode_sampling_params, decode_token_ids, decode_tree_shape
from paceline.errors import InvalidInputError, ModelLoadError, UnsupportedFieldError
from paceline.v1 import router_pb2
from router.policy import Override
from router.request import ClientRequest, Limits, Terms
from router.text.tokenizer import TextTokenizer

_MAX_REQUEST_ID_LEN = 256
# Text up to here is tokenised in about a millisecond on the event loop's own thread; longer text on another one.
_INLINE_TEXT_LEN = 2_000
_SHOWN_ROLE_LEN = 32  # of one that is refused: a status holds some kilobytes
_NO_OVERRIDE = Override()
_NO_TERMS = Terms()


class RequestParser:
    """Checks a request at the edge. draw_seed and draw_id give what the client left open."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        template: ChatTemplate | None,
        *,
        draw_seed: Callable[[], int],
        draw_id: Callable[[], str],
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._draw_seed = draw_seed
        self._draw_id = draw_id

    async def parse(self, message: router_pb2.GenerateRequest, limits: Limits, terms: Terms) -> ClientRequest:
        """Raises InvalidInputError, UnsupportedFieldError, and ModelLoadError for chat without a template."""
        if message.HasField("lora_id"):
            raise UnsupportedFieldError("lora_id is not supported yet; leave it unset")
        if len(message.request_id) > _MAX_REQUEST_ID_LEN:
            raise InvalidInputError(f"request_id has {len(message.request_id)} characters, over {_MAX_REQUEST_ID_LEN}")
        sampling = decode_sampling_params(message.sampling_params, self._draw_seed)
        for token_id in sampling.stop_token_ids:
            if token_id >= limits.vocab_size:
                raise InvalidInputError(
                    f"stop_token_ids holds {token_id}, outside the vocabulary of {limits.vocab_size}"
                )
        override = _override(message)
        prompt_ids = await self._prompt_ids(message, limits)
        limits.check_prompt_len(len(prompt_ids))
        return ClientRequest(
            request_id=message.request_id or self._draw_id(),
            prompt_ids=tuple(prompt_ids),
            sampling=sampling,
            override=override,
            terms=terms,
            skip_special_tokens=message.skip_special_tokens if message.HasField("skip_special_tokens") else True,
        )

    async def _prompt_ids(self, message: router_pb2.GenerateRequest, limits: Limits) -> list[int]:
        kind = message.WhichOneof("input")
        if kind == "token_ids":
            limits.check_prompt_len(len(message.token_ids.ids))
            ids: list[int] = decode_token_ids(message.token_ids.ids, limits.vocab_size).tolist()
            return ids
        if kind == "text":
            return await self._encode(message.text, limits, add_special_tokens=True)
        if kind == "chat":
            return await self._encode(self._render(message.chat), limits, add_special_tokens=False)
        raise InvalidInputError("the request has no input; set one of text, token_ids and chat")

    def _render(self, chat: router_pb2.ChatMessages) -> str:
        if self._template is None:
            raise ModelLoadError(
                "the model has no chat template; send text or token_ids, or put a chat_template.jinja in --model-path"
            )
        if not chat.messages:
            raise InvalidInputError("chat has no messages; send at least one")
        for index, entry in enumerate(chat.messages):
            if entry.role not in self._template.roles:
                has = f"has the role {entry.role[:_SHOWN_ROLE_LEN]!r}" if entry.role else "has no role"
                raise InvalidInputError(
                    f"chat message {index} {has}; set it to one of {', '.join(self._template.roles)}"
                )
        return self._template.render([{"role": entry.role, "content": entry.content} for entry in chat.messages])

    async def _encode(self, text: str, limits: Limits, *, add_special_tokens: bool) -> list[int]:
        fewest = -(-len(text) // self._tokenizer.longest_token_len)
        if fewest:
            limits.check_prompt_len(fewest, exact=False)
        if len(text) <= _INLINE_TEXT_LEN:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return await asyncio.to_thread(self._tokenizer.encode, text, add_special_tokens=add_special_tokens)


def decode_terms(message: router_pb2.GenerateRequest) -> Terms:
    """Raises InvalidInputError for a value out of its range."""
    deadline_s = message.deadline_s if message.HasField("deadline_s") else None
    tenant, priority = message.tenant, message.priority
    return Terms(tenant, priority, deadline_s) if tenant or priority or deadline_s is not None else _NO_TERMS


def _override(message: router_pb2.GenerateRequest) -> Override:
    if not message.HasField("speculation"):
        return _NO_OVERRIDE
    asked = message.speculation
    if not asked.HasField("shape"):
        return Override(disable=asked.disable)
    if asked.disable:
        raise InvalidInputError("speculation sets both disable and shape; set one of them")
    return Override(shape=decode_tree_shape(asked.shape))
