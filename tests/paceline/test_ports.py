"""Ports that cannot be had are said before anything is loaded."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry

from paceline.errors import ConfigError
from paceline.metrics import MetricsServer
from paceline.ports import Listener, check_ports, listen
from paceline.rpc import RpcServer
from tests.support.waiting import WAIT_S


@pytest.mark.parametrize("host", ["0.0.0.0", "localhost", "::1", "[::1]", "[::]"])
async def test_every_form_of_a_host_can_be_listened_on_by_all_that_listen(host, free):
    if ":" in host and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    check_ports([Listener("--port", host, free)])
    server = RpcServer("paceline.v1.RouterService")
    assert await server.start(host, free) == free
    await server.stop(0)
    with MetricsServer(CollectorRegistry(), host=host, port=free):
        pass
    with listen(Listener("--round-port", host, free)) as sock:
        assert sock.getsockname()[1] == free


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_a_port_of_either_ip_is_taken_for_both(taken):
    with pytest.raises(ConfigError, match=r"nothing can listen on .*Address already in use; see what listens there"):
        check_ports([Listener("--port", "[::]", taken)])


def test_a_host_that_is_not_of_this_machine_is_named(free):
    with pytest.raises(ConfigError, match=r"nothing can listen on 192.*name an address of this machine"):
        check_ports([Listener("--port", "192.0.2.1", free)])
    with pytest.raises(ConfigError, match="the host does not resolve; name an address"):
        check_ports([Listener("--port", "no.such.host.invalid", 0)])
    with pytest.raises(ConfigError, match="the host does not resolve; name an address"):
        check_ports([Listener("--port", "a..b", 0)])


@pytest.mark.parametrize("module", ["router", "draft_service", "target_service"])
@pytest.mark.parametrize("flag", ["--port", "--metrics-port"])
def test_a_service_looks_at_its_ports_before_its_model(module, flag, taken):
    command = [sys.executable, "-m", module, "--port=0", "--model-path=/no/such/model", f"{flag}={taken}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 2
    said = done.stderr.strip().rpartition("\n")[2]
    assert said.startswith(f"{module}: {flag} is {taken}, but nothing can listen on 127.0.0.1:{taken}: ")


@pytest.mark.parametrize("module", ["router", "draft_service", "target_service"])
def test_a_service_that_takes_a_free_port_looks_at_its_host_before_its_model(module):
    command = [sys.executable, "-m", module, "--port=0", "--model-path=/no/such/model", "--host=192.0.2.1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert "nothing can listen on 192.0.2.1:0: " in done.stderr


def test_the_routers_check_looks_at_its_model_and_ports(taken):
    def said(*flags: str) -> str:
        command = [sys.executable, "-m", "router", "--check", *flags]
        return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False).stderr

    assert f"--port is {taken}, but nothing can listen" in said("--port", str(taken))
    assert "cannot read the tokenizer /no/such/model" in said("--port=0", "--model-path=/no/such/model")
    assert said("--port=0") == ""
