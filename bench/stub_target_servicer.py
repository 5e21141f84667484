"""A target without a model, for measuring what stands before one: it emits tokens on a clock."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc

from paceline.v1 import common_pb2, target_pb2

_MANY = 1 << 40
_FIRST_TOKEN_ID = 500


@dataclass(frozen=True, slots=True)
class StubSettings:
    step_ms: float
    tokens_a_step: int  # of each request


class StubTargetServicer:
    """Runs whatever is submitted at once, in steps of a fixed length, until max_tokens."""

    def __init__(self, settings: StubSettings) -> None:
        self._settings = settings

    def add_to(self, server: grpc.aio.Server) -> None:
        serve = grpc.stream_stream_rpc_method_handler(
            self.serve,
            request_deserializer=target_pb2.ServeRequest.FromString,
            response_serializer=target_pb2.ServeResponse.SerializeToString,
        )
        name = target_pb2.DESCRIPTOR.services_by_name["TargetService"].full_name
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"Serve": serve}),))

    async def serve(
        self, request_iterator: AsyncIterator[target_pb2.ServeRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[target_pb2.ServeResponse]:
        running: dict[int, list[int]] = {}  # request: emitted, max_tokens
        reader = asyncio.create_task(_read(request_iterator, running))
        try:
            yield _first_response()
            clock = asyncio.get_running_loop().time
            step, due_at = 0, clock()
            while not reader.done():
                due_at = max(due_at + self._settings.step_ms / 1e3, clock())
                await asyncio.sleep(due_at - clock())
                if running:
                    step += 1
                    yield self._step(step, running)
        finally:
            reader.cancel()

    def _step(self, step: int, running: dict[int, list[int]]) -> target_pb2.ServeResponse:
        response = target_pb2.ServeResponse(step=step, load=_load(len(running)))
        deltas = response.deltas
        for number, (emitted, max_tokens) in list(running.items()):
            count = min(self._settings.tokens_a_step, max_tokens - emitted)
            deltas.request.append(number)
            deltas.offset.append(emitted)
            deltas.num_tokens.append(count)
            deltas.tokens.extend([_FIRST_TOKEN_ID + (emitted + i) % 1000 for i in range(count)])
            running[number][0] += count
            if emitted + count == max_tokens:
                del running[number]
                response.finishes.add(request=number, reason=common_pb2.FINISH_REASON_LENGTH)
        return response


async def run(settings: StubSettings) -> None:
    """Prints ``ready HOST:PORT`` and serves until it is ended."""
    server = grpc.aio.server()
    StubTargetServicer(settings).add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"ready 127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


async def _read(messages: AsyncIterator[target_pb2.ServeRequest], running: dict[int, list[int]]) -> None:
    async for message in messages:
        for submission in message.submit.submissions:
            running[submission.request] = [len(submission.emitted_ids), submission.sampling_params.max_tokens]
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


if __name__ == "__main__":
    asyncio.run(run(StubSettings(float(sys.argv[1]), int(sys.argv[2]))))
