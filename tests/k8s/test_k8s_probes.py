"""Every probe asks for a health service that its server knows."""

from __future__ import annotations

import socket

from grpc_health.v1 import health_pb2, health_pb2_grpc

import draft_service.servicer
import router.servicer
import target_service.servicer
from paceline.rpc import RpcServer, open_channel
from tests.support.manifests import OVERLAYS, workloads
from tests.support.waiting import WAIT_S

SERVICE_NAMES = {
    "router": router.servicer.SERVICE_NAME,
    "draft": draft_service.servicer.SERVICE_NAME,
    "target": target_service.servicer.SERVICE_NAME,
}
PROBES = {
    (found.component, kind, found.container[kind]["grpc"]["service"])
    for overlay in OVERLAYS
    for found in workloads(overlay)
    if not found.is_worker
    for kind in ("startupProbe", "readinessProbe", "livenessProbe")
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


async def test_each_probe_gets_an_answer_and_only_readiness_follows_the_drain() -> None:
    assert {component for component, _, _ in PROBES} == SERVICE_NAMES.keys()
    for component, service_name in SERVICE_NAMES.items():
        health_port = free_port()
        server = RpcServer(service_name, health_port=health_port)
        await server.start("127.0.0.1", 0)
        try:
            async with open_channel(f"127.0.0.1:{health_port}") as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                for ready in (True, False):
                    await server.set_ready(ready)
                    for _, kind, service in sorted(probe for probe in PROBES if probe[0] == component):
                        reply = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=WAIT_S)
                        serving = reply.status == health_pb2.HealthCheckResponse.SERVING
                        assert serving == (ready or kind != "readinessProbe"), (component, kind)
        finally:
            await server.stop(0)


def test_a_worker_is_probed_for_life_alone() -> None:
    workers = [found for overlay in OVERLAYS for found in workloads(overlay) if found.is_worker]
    assert workers
    for found in workers:
        kinds = ("startupProbe", "readinessProbe", "livenessProbe")
        assert {found.container[kind]["grpc"]["service"] for kind in kinds} == {"liveness"}


def test_every_workload_has_all_three_probes_on_a_port_that_serves_health() -> None:
    for overlay in OVERLAYS:
        for found in workloads(overlay):
            flags = found.flag_values()
            ports = {int(flags["port"])} if "tls-cert" not in flags else {int(flags["health-port"])}
            assert {found.container[kind]["grpc"]["port"] for kind in ("startupProbe", "livenessProbe")} == ports
            assert found.container["readinessProbe"]["grpc"]["port"] in ports
            startup, liveness = found.container["startupProbe"], found.container["livenessProbe"]
            assert startup["failureThreshold"] * startup["periodSeconds"] >= 120
            assert liveness["failureThreshold"] * liveness["periodSeconds"] >= 60
