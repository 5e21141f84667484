"""A target over two hosts, here two processes of one machine that share no memory and no folder."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator

import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.config import to_argv
from paceline.errors import ConfigError
from paceline.rpc import open_channel
from paceline.types import SamplingParams
from target_service.config import TargetConfig
from tests.support.target_peer import submission
from tests.support.target_program import Program, router_of
from tests.support.tiny_target import TinyTarget, random_prompt
from tests.support.waiting import WAIT_S

pytestmark = pytest.mark.slow

Start = Callable[..., tuple[Program, Program]]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def start(tiny_target: TinyTarget) -> Iterator[Start]:
    """Both hosts, with one rank each."""
    with contextlib.ExitStack() as stack:

        def starting() -> tuple[Program, Program]:
            place = f"127.0.0.1:{free_port()}"
            ports = (0, free_port())
            programs = []
            for node_rank, port in enumerate(ports):
                config = tiny_target.config(tp_size=2, nnodes=2, node_rank=node_rank, dist_init_addr=place, port=port)
                programs.append(Program(*to_argv(config)))
                stack.callback(programs[-1].discard)
            return programs[0], programs[1]

        yield starting


async def test_two_hosts_give_the_tokens_of_one_and_end_together(start: Start, loop) -> None:
    prompt = random_prompt(20)
    plain = loop.generate(prompt, SamplingParams(max_tokens=12, ignore_eos=True))
    serving, computing = start()
    async with router_of(serving.address()) as router:
        (port,) = [word.partition("=")[2] for word in computing.command if word.startswith("--port=")]
        async with open_channel(f"127.0.0.1:{port}") as channel:
            health = health_pb2_grpc.HealthStub(channel)
            said = [
                await health.Check(health_pb2.HealthCheckRequest(service=name)) for name in ("liveness", "readiness")
            ]
        assert [reply.status for reply in said] == [
            health_pb2.HealthCheckResponse.SERVING,
            health_pb2.HealthCheckResponse.NOT_SERVING,
        ]
        await router.submit(submission(1, prompt, max_tokens=12), submission(2, prompt, max_tokens=200))
        (got,) = await router.finish(1)
        assert got.tokens == plain
        for program in (computing, serving):  # as Kubernetes does: both at once
            program.process.send_signal(signal.SIGTERM)
        (got,) = await router.finish(2)
        assert len(got.tokens) == 200
    for program in (serving, computing):
        code, errors = program.end()
        assert code == 0, errors


@pytest.mark.parametrize("lost", [0, 1])
def test_the_loss_of_a_host_ends_the_other(start: Start, lost: int) -> None:
    hosts = start()
    hosts[0].address()
    processes = [psutil.Process(host.process.pid) for host in hosts]
    workers = [child for process in processes for child in process.children()]
    os.kill(hosts[lost].process.pid, signal.SIGKILL)
    code, errors = hosts[1 - lost].end()
    assert code != 0
    assert "Traceback" not in errors
    _, alive = psutil.wait_procs(workers, timeout=WAIT_S)
    assert not alive


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"nnodes": 2, "tp_size": 3, "dist_init_addr": "a:1"}, "--tp-size is 3; it must be a multiple of --nnodes, 2"),
        (
            {"nnodes": 2, "tp_size": 2},
            "--dist-init-addr is unset; it must be host:port of host 0; a port is 1 to 65535",
        ),
        ({"nnodes": 2, "tp_size": 2, "dist_init_addr": "a:65536"}, "host 0; a port is 1 to 65535"),
        ({"nnodes": 2, "tp_size": 2, "dist_init_addr": "http://a:1"}, "--dist-init-addr is http://a:1;"),
        ({"nnodes": 2, "tp_size": 2, "dist_init_addr": "a:1", "node_rank": 2}, "--node-rank is 2; it must be 0 to 1"),
        ({"dist_init_addr": "a:1"}, "--dist-init-addr is a:1; it must be unset without --nnodes"),
    ],
)
def test_flags_of_hosts_that_make_no_whole_are_refused(flags: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TargetConfig(**flags)
    assert says in str(caught.value)
