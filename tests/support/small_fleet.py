"""Real gRPC servers that say what a router, a target and a draft would say of themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from paceline.tls import TlsFiles, TlsIdentity
from paceline.v1 import common_pb2, draft_pb2, draft_pb2_grpc, router_pb2, router_pb2_grpc, target_pb2, target_pb2_grpc

HEAD = {"head_fingerprint": "head-a", "feature_id": "fc-a"}


@dataclass(slots=True)
class SmallService:
    """One server. Change ``info`` at will; ``ready`` is what its health says."""

    info: common_pb2.ServiceInfo
    address: str
    health: health.HealthServicer
    server: grpc.Server

    def set_ready(self, ready: bool) -> None:
        states = health_pb2.HealthCheckResponse
        self.health.set("readiness", states.SERVING if ready else states.NOT_SERVING)

    def state(self, *, ready: bool = True, message: str = "") -> router_pb2.ReplicaState:
        """What a router says of it."""
        return router_pb2.ReplicaState(address=self.address, ready=ready, info=self.info, message=message)


class _Target(target_pb2_grpc.TargetServiceServicer):
    def __init__(self, info: common_pb2.ServiceInfo) -> None:
        self._info = info

    def GetInfo(self, request: Any, context: Any) -> target_pb2.TargetServiceGetInfoResponse:
        return target_pb2.TargetServiceGetInfoResponse(info=self._info)


class _Draft(draft_pb2_grpc.DraftServiceServicer):
    def __init__(self, info: common_pb2.ServiceInfo) -> None:
        self._info = info

    def GetInfo(self, request: Any, context: Any) -> draft_pb2.DraftServiceGetInfoResponse:
        return draft_pb2.DraftServiceGetInfoResponse(info=self._info)


class SmallRouter(router_pb2_grpc.RouterServiceServicer):
    """Names the services that ``reply`` holds, and answers every request with one token."""

    def __init__(self) -> None:
        info = common_pb2.ServiceInfo(service="router", version="0.1.0", tokenizer_fingerprint="words")
        self.reply = router_pb2.RouterServiceGetInfoResponse(
            info=info, speculative_policy="always", max_queued_requests=8
        )

    def GetInfo(self, request: Any, context: Any) -> router_pb2.RouterServiceGetInfoResponse:
        return self.reply

    def Generate(self, request: Any, context: Any) -> Iterator[router_pb2.GenerateResponse]:
        yield router_pb2.GenerateResponse(
            token_ids=[1], finish_reason=common_pb2.FINISH_REASON_LENGTH, usage=router_pb2.Usage(completion_tokens=1)
        )


class SmallFleet:
    """Starts them on free ports of loopback; all end with ``close``."""

    def __init__(self, tls: TlsFiles | None = None) -> None:
        self._tls = None if tls is None else TlsIdentity(tls)
        self._stack = contextlib.ExitStack()

    def target(self, **info: Any) -> SmallService:
        said = common_pb2.ServiceInfo(
            **{"service": "target", "version": "0.1.0", "tokenizer_fingerprint": "words", **HEAD, **info}
        )
        return self._serve(_Target(said), target_pb2_grpc.add_TargetServiceServicer_to_server, said)

    def draft(self, **info: Any) -> SmallService:
        said = common_pb2.ServiceInfo(**{"service": "draft", "version": "0.1.0", **HEAD, **info})
        return self._serve(_Draft(said), draft_pb2_grpc.add_DraftServiceServicer_to_server, said)

    def router(self, targets: list[router_pb2.ReplicaState], drafts: list[router_pb2.ReplicaState]) -> SmallRouter:
        servicer = SmallRouter()
        servicer.reply.targets.extend(targets)
        servicer.reply.drafts.extend(drafts)
        started = self._serve(servicer, router_pb2_grpc.add_RouterServiceServicer_to_server, servicer.reply.info)
        servicer.address = started.address
        return servicer

    def close(self) -> None:
        self._stack.close()

    def _serve(self, servicer: Any, add: Any, info: common_pb2.ServiceInfo) -> SmallService:
        server = grpc.server(futures.ThreadPoolExecutor(4))
        add(servicer, server)
        states = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(states, server)
        if self._tls is None:
            port = server.add_insecure_port("127.0.0.1:0")
        else:
            port = server.add_secure_port("127.0.0.1:0", self._tls.server_credentials())
        server.start()
        self._stack.callback(lambda: server.stop(None).wait())
        started = SmallService(info, f"127.0.0.1:{port}", states, server)
        started.set_ready(True)
        return started
