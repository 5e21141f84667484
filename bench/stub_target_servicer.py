"""A target without a model, for measuring what stands before one: it emits tokens on a clock.

It answers clients itself, too, as a router would: what their messages cost without one.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import IO, Any

import grpc

from bench.step_clock import StepClock
from paceline.v1 import common_pb2, router_pb2, target_pb2

TARGET_NAME = target_pb2.DESCRIPTOR.services_by_name["TargetService"].full_name
_ROUTER_NAME = router_pb2.DESCRIPTOR.services_by_name["RouterService"].full_name
_MANY = 1 << 40
_FIRST_TOKEN_ID = 500


@dataclass(slots=True)
class _Running:
    request_id: str
    received_s: float  # on the monotonic clock
    max_tokens: int
    emitted: int = 0


class StubTargetServicer:
    """Runs whatever is submitted at once, in steps of the clock, until max_tokens.

    first_tokens: gets a line for each request: its id, when it came, and when its first token left, in seconds of the
    machine's monotonic clock.
    """

    def __init__(self, clock: StepClock, *, tokens_a_step: int, first_tokens: IO[str]) -> None:
        self._clock = clock
        self._tokens_a_step = tokens_a_step
        self._first_tokens = first_tokens
        self._ids = itertools.count()

    def add_to(self, server: grpc.aio.Server) -> None:
        serve = grpc.stream_stream_rpc_method_handler(
            self.serve,
            request_deserializer=target_pb2.ServeRequest.FromString,
            response_serializer=target_pb2.ServeResponse.SerializeToString,
        )
        generate = grpc.unary_stream_rpc_method_handler(
            self.generate,
            request_deserializer=router_pb2.GenerateRequest.FromString,
            response_serializer=router_pb2.GenerateResponse.SerializeToString,
        )
        get_info = grpc.unary_unary_rpc_method_handler(
            self.get_info,
            request_deserializer=router_pb2.RouterServiceGetInfoRequest.FromString,
            response_serializer=router_pb2.RouterServiceGetInfoResponse.SerializeToString,
        )
        router: dict[str, grpc.RpcMethodHandler[Any, Any]] = {"Generate": generate, "GetInfo": get_info}
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(TARGET_NAME, {"Serve": serve}),
                grpc.method_handlers_generic_handler(_ROUTER_NAME, router),
            )
        )

    async def serve(
        self, request_iterator: AsyncIterator[target_pb2.ServeRequest], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[target_pb2.ServeResponse]:
        running: dict[int, _Running] = {}
        filled = asyncio.Event()
        reader = asyncio.create_task(_read(request_iterator, running, filled))
        try:
            yield _first_response()
            for step in itertools.count(1):
                if not running:
                    filled.clear()
                    await filled.wait()
                await self._clock.next_step()
                yield self._step(step, running)
        finally:
            reader.cancel()

    async def generate(
        self, request: router_pb2.GenerateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[router_pb2.GenerateResponse]:
        running = _Running(f"stub-{next(self._ids)}", time.monotonic(), request.sampling_params.max_tokens)
        while running.emitted < running.max_tokens:
            await self._clock.next_step()
            offset, tokens = self._advance(running)
            response = router_pb2.GenerateResponse(
                request_id=running.request_id, text=" word" * len(tokens), token_ids=tokens, offset=offset
            )
            if running.emitted == running.max_tokens:
                response.finish_reason = common_pb2.FINISH_REASON_LENGTH
                response.usage.completion_tokens = running.emitted
            yield response

    async def get_info(
        self, request: router_pb2.RouterServiceGetInfoRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> router_pb2.RouterServiceGetInfoResponse:
        return router_pb2.RouterServiceGetInfoResponse()

    def _step(self, step: int, running: dict[int, _Running]) -> target_pb2.ServeResponse:
        response = target_pb2.ServeResponse(step=step, load=_load(len(running)))
        deltas = response.deltas
        for number, request in list(running.items()):
            offset, tokens = self._advance(request)
            deltas.request.append(number)
            deltas.offset.append(offset)
            deltas.num_tokens.append(len(tokens))
            deltas.tokens.extend(tokens)
            if request.emitted == request.max_tokens:
                del running[number]
                response.finishes.add(request=number, reason=common_pb2.FINISH_REASON_LENGTH)
        return response

    def _advance(self, request: _Running) -> tuple[int, list[int]]:
        """The offset and tokens of its next step."""
        if not request.emitted:
            self._first_tokens.write(f"{request.request_id} {request.received_s:.9f} {time.monotonic():.9f}\n")
        offset = request.emitted
        count = min(self._tokens_a_step, request.max_tokens - offset)
        request.emitted += count
        return offset, [_FIRST_TOKEN_ID + (offset + i) % 1000 for i in range(count)]


async def _read(
    messages: AsyncIterator[target_pb2.ServeRequest], running: dict[int, _Running], filled: asyncio.Event
) -> None:
    async for message in messages:
        for submission in message.submit.submissions:
            running[submission.request] = _Running(
                submission.request_id,
                time.monotonic(),
                submission.sampling_params.max_tokens,
                len(submission.emitted_ids),
            )
            filled.set()
        for number in message.cancel.requests:
            running.pop(number, None)


def _first_response() -> target_pb2.ServeResponse:
    info = common_pb2.ServiceInfo(
        service="target",
        incarnation=1,
        model_name="stub",
        vocab_size=49152,
        context_length=8192,
        dtype="bfloat16",
        page_size=16,
        num_pages=1 << 20,
        max_running_requests=4096,
    )
    return target_pb2.ServeResponse(info=info, credits=target_pb2.Credits(slots=_MANY, pages=_MANY), load=_load(0))


def _load(num_running: int) -> target_pb2.LoadReport:
    return target_pb2.LoadReport(running_requests=num_running, max_running_requests=4096, num_pages=1 << 20)
