"""What a sweep samples of a target's steps, over mutual TLS."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest

from bench.step_sampler import StepSampler
from bench.workload import Workload
from client.credentials import Credentials
from client.request import Sampling
from paceline.errors import PacelineError
from paceline.tls import TlsFiles
from paceline.v1 import target_pb2, target_pb2_grpc
from tests.support.certificates import Authority
from tests.support.waiting import WAIT_S


class Target(target_pb2_grpc.TargetServiceServicer):
    """Each step is seen twice."""

    def __init__(self) -> None:
        self.looks = 0
        self.done = threading.Event()

    def GetInfo(self, request, context):
        self.looks += 1
        if self.looks > 4:
            self.done.set()
        load = target_pb2.LoadReport(rows=2, verified_requests=2, step_ms=10.0 + (self.looks + 1) // 2)
        return target_pb2.TargetServiceGetInfoResponse(load=load)


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return Authority(tmp_path).issue("peer")


@pytest.fixture
def target(files: TlsFiles) -> Iterator[tuple[Target, str]]:
    """And its address."""
    key, cert, ca = (Path(path).read_bytes() for path in (files.key, files.cert, files.ca))
    server = grpc.server(futures.ThreadPoolExecutor(2))
    servicer = Target()
    target_pb2_grpc.add_TargetServiceServicer_to_server(servicer, server)
    credentials = grpc.ssl_server_credentials([(key, cert)], root_certificates=ca, require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    yield servicer, f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_each_step_is_sampled_once_with_the_certificates_of_the_flags(
    target: tuple[Target, str], files: TlsFiles
) -> None:
    servicer, address = target
    workload = Workload("router:1", ("one",), (Sampling(max_tokens=8),), Credentials(files))
    with StepSampler([address], workload.tls()) as sampler:
        assert servicer.done.wait(WAIT_S)
    steps = [step.step_ms for step in sampler.take()]
    assert steps[:2] == [11.0, 12.0] and len(set(steps)) == len(steps)


def test_a_target_that_does_not_answer_is_an_error_of_the_next_point(target: tuple[Target, str]) -> None:
    _, address = target
    with StepSampler([address], None) as sampler:
        sampler._thread.join(WAIT_S)
    with pytest.raises(PacelineError, match=address):
        sampler.take()
