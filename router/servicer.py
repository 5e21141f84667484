"""RouterService: one Generate call streams one live request to its client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from paceline.errors import InvalidInputError, PacelineError
from paceline.v1 import router_pb2, router_pb2_grpc
from router.config import RouterConfig
from router.dispatcher import Dispatcher
from router.info_codec import encode_router_info
from router.live_request import LiveRequest
from router.metrics import RouterMetrics
from router.request_codec import RequestParser
from router.response_codec import ResponseEncoder
from router.text.tokenizer import TextTokenizer

SERVICE_NAME = router_pb2.DESCRIPTOR.services_by_name["RouterService"].full_name
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class RouterServicer(router_pb2_grpc.RouterServiceServicer):
    """Translates, admits, and yields: at most one message a client and step, fewer under load."""

    def __init__(
        self,
        config: RouterConfig,
        dispatcher: Dispatcher,
        *,
        parser: RequestParser,
        tokenizer: TextTokenizer,
        metrics: RouterMetrics,
    ) -> None:
        self._config = config
        self._dispatcher = dispatcher
        self._parser = parser
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._clock = asyncio.get_running_loop().time

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers both methods. Generate's bytes are parsed so that it can refuse them: gRPC would say UNKNOWN."""
        generate = grpc.unary_stream_rpc_method_handler(
            self.Generate,
            request_deserializer=_parse,
            response_serializer=router_pb2.GenerateResponse.SerializeToString,
        )
        get_info = grpc.unary_unary_rpc_method_handler(
            self.GetInfo,
            request_deserializer=router_pb2.RouterServiceGetInfoRequest.FromString,
            response_serializer=router_pb2.RouterServiceGetInfoResponse.SerializeToString,
        )
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {"Generate": generate, "GetInfo": get_info}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))

    async def Generate(
        self, request: router_pb2.GenerateRequest | DecodeError, context: _Context
    ) -> AsyncIterator[router_pb2.GenerateResponse]:
        try:
            if isinstance(request, DecodeError):
                raise InvalidInputError(f"the bytes sent are no GenerateRequest: {request}")
            self._dispatcher.check_open()
            parsed = await self._parser.parse(request, self._dispatcher.fleet.limits())
            live = self._dispatcher.admit(parsed)
        except PacelineError as error:
            await context.abort(error.code, str(error))
        try:
            responses = ResponseEncoder(
                live, self._tokenizer.detokenizer(skip_special_tokens=parsed.skip_special_tokens)
            )
            sent_at = 0.0
            while True:
                await live.wait()
                if isinstance(live.outcome, PacelineError):
                    await context.abort(live.outcome.code, str(live.outcome))
                response = responses.next()
                sent_at = self._count(live, len(response.token_ids), sent_at)
                yield response
                if response.finish_reason:
                    return
        finally:
            self._dispatcher.release(live)

    async def GetInfo(
        self, request: router_pb2.RouterServiceGetInfoRequest, context: _Context
    ) -> router_pb2.RouterServiceGetInfoResponse:
        return encode_router_info(self._dispatcher, self._config, tokenizer_fingerprint=self._tokenizer.fingerprint)

    def _count(self, live: LiveRequest, num_tokens: int, sent_at: float) -> float:
        """Counts a message at its sending; returns that time. sent_at: of the one before it, 0 for none."""
        now = self._clock()
        if num_tokens and sent_at:
            self._metrics.token_s.observe((now - sent_at) / num_tokens)
        elif num_tokens:
            self._metrics.first_token_s.observe(now - live.started_at)
        return now


def _parse(data: bytes) -> router_pb2.GenerateRequest | DecodeError:
    try:
        return router_pb2.GenerateRequest.FromString(data)
    except DecodeError as error:
        return error
