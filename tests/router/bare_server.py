"""A gRPC server that streams what a router would, and does nothing else: what a message costs at least."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from paceline.v1 import router_pb2, router_pb2_grpc


class BareServicer(router_pb2_grpc.RouterServiceServicer):
    """Each GetInfo sends one message to every open Generate call."""

    def __init__(self) -> None:
        self._steps: list[asyncio.Queue[int]] = []

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[router_pb2.GenerateResponse]:
        steps: asyncio.Queue[int] = asyncio.Queue()
        self._steps.append(steps)
        while True:
            offset = await steps.get()
            yield router_pb2.GenerateResponse(request_id="0" * 32, text=" word", token_ids=[500], offset=offset)

    async def GetInfo(self, request: Any, context: Any) -> router_pb2.RouterServiceGetInfoResponse:
        for steps in self._steps:
            steps.put_nowait(0)
        return router_pb2.RouterServiceGetInfoResponse(queued_requests=len(self._steps))


async def main() -> None:
    server = grpc.aio.server()
    router_pb2_grpc.add_RouterServiceServicer_to_server(BareServicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"ready 127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
