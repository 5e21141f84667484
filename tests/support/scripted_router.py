"""A real gRPC router whose answers a test writes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent import futures

import grpc

from paceline.v1 import common_pb2, router_pb2, router_pb2_grpc

Script = Callable[[router_pb2.GenerateRequest, grpc.ServicerContext], Iterator[router_pb2.GenerateResponse]]


class ScriptedRouter(router_pb2_grpc.RouterServiceServicer):
    """Answers Generate by its script and keeps the requests."""

    def __init__(self) -> None:
        self.script: Script = answer_hello
        self.requests: list[router_pb2.GenerateRequest] = []
        self.ended = threading.Event()
        self.info_asked = threading.Semaphore(0)  # released at each GetInfo
        self.address = ""
        self.info = router_pb2.RouterServiceGetInfoResponse(
            info=common_pb2.ServiceInfo(service="router", model_name="scripted", version="0.1.0"),
            speculative_policy="always",
            targets=[_replica("target", "127.0.0.1:2"), _replica("target", "127.0.0.1:4", ready=False)],
            drafts=[_replica("draft", "127.0.0.1:3")],
        )

    def Generate(
        self, request: router_pb2.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[router_pb2.GenerateResponse]:
        self.requests.append(request)
        context.add_callback(self.ended.set)
        yield from self.script(request, context)

    def GetInfo(
        self, request: router_pb2.RouterServiceGetInfoRequest, context: grpc.ServicerContext
    ) -> router_pb2.RouterServiceGetInfoResponse:
        self.info_asked.release()
        return self.info


def _replica(service: str, address: str, *, ready: bool = True) -> router_pb2.ReplicaState:
    info = common_pb2.ServiceInfo(service=service, dtype="float32", device="cpu", num_pages=64, page_size=16, tp_size=1)
    return router_pb2.ReplicaState(address=address, ready=ready, info=info)


def answer_hello(
    request: router_pb2.GenerateRequest, context: grpc.ServicerContext
) -> Iterator[router_pb2.GenerateResponse]:
    yield router_pb2.GenerateResponse(request_id="r1", text="Hel", token_ids=[5, 6], prompt_ids=[1, 2, 3])
    yield router_pb2.GenerateResponse(request_id="r1", text="lo", token_ids=[7], offset=2)
    yield router_pb2.GenerateResponse(
        request_id="r1",
        token_ids=[0],
        offset=3,
        finish_reason=common_pb2.FINISH_REASON_STOP,
        usage=router_pb2.Usage(prompt_tokens=3, completion_tokens=4),
        stats=common_pb2.SpeculationStats(
            speculative_rounds=2, rounds=2, accepted_drafts=3, proposed_drafts=30, accepted_by_depth=[2, 1]
        ),
    )


@contextlib.contextmanager
def running_router() -> Iterator[ScriptedRouter]:
    """On a free port of loopback."""
    servicer = ScriptedRouter()
    server = grpc.server(futures.ThreadPoolExecutor(8))
    router_pb2_grpc.add_RouterServiceServicer_to_server(servicer, server)
    servicer.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield servicer
    server.stop(None).wait()
