"""What a client gets of its request: tokens, the text that they complete, and at last how it ended."""

from __future__ import annotations

from paceline.codec import encode_finish_reason, fill_stats
from paceline.types import FinishReason
from paceline.v1 import router_pb2
from router.live_request import LiveRequest
from router.text.detokenizer import Detokenizer


class ResponseEncoder:
    """The messages of one request, one after the other in the same object: to make one costs more than to fill it.

    The token that stops the request is returned and has no text.
    """

    __slots__ = ("_detokenizer", "_live", "_response", "_token_ids")

    def __init__(self, live: LiveRequest, detokenizer: Detokenizer) -> None:
        self._live = live
        self._detokenizer = detokenizer
        self._response = router_pb2.GenerateResponse(
            request_id=live.request.request_id, prompt_ids=live.request.prompt_ids
        )
        self._token_ids = self._response.token_ids

    def next(self) -> router_pb2.GenerateResponse:
        """All that came since the last call; complete with finish_reason, usage and stats once the request ended.

        Good until the next call.
        """
        live, response = self._live, self._response
        offset = live.taken
        if offset:
            response.ClearField("prompt_ids")
        tokens = live.take()
        stopped = bool(tokens) and tokens[-1] in live.stop_ids
        text = self._detokenizer.push(tokens[:-1] if stopped else tokens)
        response.offset = offset
        self._token_ids[:] = tokens
        if isinstance(live.outcome, FinishReason):
            text += self._detokenizer.finish()
            response.finish_reason = encode_finish_reason(live.outcome)
            response.usage.prompt_tokens = len(live.request.prompt_ids)
            response.usage.completion_tokens = live.taken
            fill_stats(response.stats, live.stats)
        response.text = text
        return response
