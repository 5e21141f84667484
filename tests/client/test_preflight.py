"""What a fleet's flags get wrong is said before, or beside, the loading of models: small programs as services."""

from __future__ import annotations

import pytest

from client import launcher
from client.launcher import Fleet
from client.launcher_config import FleetConfig
from client.preflight import listeners_in
from client.process import ServiceStartError
from paceline.errors import ConfigError
from paceline.ports import Listener
from tests.support.waiting import WAIT_S


def starts_nothing(config: FleetConfig, error: type[Exception], words: str) -> None:
    fleet = Fleet(config)
    with pytest.raises(error, match=words):
        fleet.start()
    assert all(process.pid is None for process in fleet.processes)
    assert not fleet.log_dir.exists()


def test_a_taken_port_of_the_router_is_refused_before_a_start(small_programs, taken):
    starts_nothing(FleetConfig(router_port=taken), ConfigError, f"--port is {taken}, but nothing can listen on 127.0.0")


def test_a_port_that_two_services_name_is_refused_before_a_start(small_programs, free):
    config = FleetConfig(num_targets=2, target_flags=(f"--metrics-port={free}",))
    starts_nothing(config, ConfigError, f"--metrics-port is {free}, .*whether two of these services would")


def test_a_flag_that_the_router_refuses_ends_the_start_before_it_begins(small_programs):
    starts_nothing(
        FleetConfig(router_flags=("--unlinked", "badly")), ServiceStartError, "router would not start: .*must"
    )


def test_a_target_that_refuses_its_flags_is_not_left_waiting_behind_a_draft_that_loads(small_programs):
    small_programs.setattr(launcher, "DRAFT_MODULE", "silent")
    small_programs.setattr(launcher, "TARGET_MODULE", "refuses")
    fleet = Fleet(FleetConfig(start_timeout_s=10 * WAIT_S, stop_grace_s=0.1))
    with pytest.raises(ServiceStartError, match="target-0 did not start: target: --dtype is int3"):
        fleet.start()
    assert not any(process.running for process in fleet.processes)


def test_the_ports_in_a_services_flags_are_found_whichever_way_they_are_written():
    flags = ["--metrics-port=9100", "--page-port", "80", "--host", "10.0.0.1", "--page-size", "16", "--health-port=0"]
    flags.append("--round-port=7400")
    assert listeners_in(flags, host="127.0.0.1") == [
        Listener("--metrics-port", "10.0.0.1", 9100),
        Listener("--page-port", "127.0.0.1", 80),
        Listener("--round-port", "10.0.0.1", 7400),
    ]
    assert listeners_in(["--metrics-port=many"], host="127.0.0.1") == []
    assert listeners_in(["--metrics-port"], host="127.0.0.1") == []
