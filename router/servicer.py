"""RouterService: one Generate call streams one live request to its client."""

from __future__ import annotations

import asyncio
import math
from typing import Any, NoReturn, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from paceline.errors import RETRY_AFTER_KEY, CapacityError, InvalidInputError, PacelineError
from paceline.tracing import Span
from paceline.v1 import router_pb2
from router.api_keys import ApiKeys, as_caller
from router.config import RouterConfig
from router.dispatcher import Dispatcher
from router.info_codec import encode_router_info
from router.live_request import Arrival, LiveRequest
from router.request_codec import RequestParser, decode_terms
from router.request_recorder import RequestRecorder
from router.response_codec import ResponseEncoder
from router.tenants import TenantDoor
from router.text.tokenizer import TextTokenizer

SERVICE_NAME = router_pb2.DESCRIPTOR.services_by_name["RouterService"].full_name
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class RouterServicer:
    """Translates, admits, and writes: at most one message a client and step, fewer under load."""

    def __init__(
        self,
        config: RouterConfig,
        dispatcher: Dispatcher,
        *,
        parser: RequestParser,
        tokenizer: TextTokenizer,
        keys: ApiKeys | None,
        recorder: RequestRecorder,
    ) -> None:
        self._config = config
        self._dispatcher = dispatcher
        self._parser = parser
        self._tokenizer = tokenizer
        self._recorder = recorder
        self._clock = asyncio.get_running_loop().time
        limit = config.rate_limit()
        self._door = None if limit is None else TenantDoor(limit, clock=self._clock)
        self._keys = keys

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

    async def Generate(self, request: router_pb2.GenerateRequest | DecodeError, context: _Context) -> None:
        """Writes the messages itself: a generator's yield costs a message more than that."""
        traceparent = _metadata(context, "traceparent") if self._recorder.traces else None
        span = self._recorder.arrived(traceparent or "")
        try:
            live = await self._admit(request, context, span)
        except PacelineError as error:
            request_id = "" if isinstance(request, DecodeError) else request.request_id
            self._recorder.refused(span, error, request_id=request_id)
            await _abort(context, error)
        try:
            responses = ResponseEncoder(
                live, self._tokenizer.detokenizer(skip_special_tokens=live.request.skip_special_tokens)
            )
            sent_at = 0.0
            while True:
                await live.wait()
                if isinstance(live.outcome, PacelineError):
                    await _abort(context, live.outcome)
                response = responses.next()
                await context.write(response)
                sent_at = self._recorder.sent(live, len(response.token_ids), sent_at)
                if response.finish_reason:
                    return
        finally:
            self._dispatcher.release(live)
            self._recorder.ended(live)

    async def GetInfo(
        self, request: router_pb2.RouterServiceGetInfoRequest, context: _Context
    ) -> router_pb2.RouterServiceGetInfoResponse:
        return encode_router_info(self._dispatcher, self._config, tokenizer_fingerprint=self._tokenizer.fingerprint)

    async def _admit(
        self, request: router_pb2.GenerateRequest | DecodeError, context: _Context, span: Span
    ) -> LiveRequest:
        """Through the tenant's door and into the queue. Raises a PacelineError."""
        arrived_at = self._clock()
        tenant = None if self._keys is None else self._keys.tenant_of(_metadata(context, "authorization"))
        self._dispatcher.check_open()
        if isinstance(request, DecodeError):
            raise InvalidInputError(f"the bytes sent are no GenerateRequest: {request}")
        terms = decode_terms(request)
        if tenant is not None:
            terms = as_caller(terms, tenant)
        limits_s = [limit_s for limit_s in (terms.deadline_s, context.time_remaining()) if limit_s is not None]
        time_limit_s = min(limits_s, default=None)
        if self._door is not None:
            await self._door.enter(terms.tenant, left_s=time_limit_s)
        parsed = await self._parser.parse(request, self._dispatcher.fleet.limits(), terms)
        deadline = None if time_limit_s is None else arrived_at + time_limit_s
        arrival = Arrival(arrived_at, deadline, self._recorder.trace(span))
        return self._dispatcher.admit(parsed, arrival)


def _metadata(context: _Context, wanted: str) -> str | None:
    for name, value in context.invocation_metadata() or ():
        if name == wanted:
            return value if isinstance(value, str) else value.decode("latin-1")
    return None


async def _abort(context: _Context, error: PacelineError) -> NoReturn:
    """Ends the call with the error's status, and a retry hint in the trailing metadata where it has one."""
    retry_after_s = error.retry_after_s if isinstance(error, CapacityError) else None
    metadata = () if retry_after_s is None else ((RETRY_AFTER_KEY, str(math.ceil(retry_after_s * 1e3))),)
    await context.abort(error.code, str(error), metadata)


def _parse(data: bytes) -> router_pb2.GenerateRequest | DecodeError:
    try:
        return router_pb2.GenerateRequest.FromString(data)
    except DecodeError as error:
        return error
