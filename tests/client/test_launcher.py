"""A fleet of services: small real programs stand where they would."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from client import launcher
from client.launcher import Fleet
from client.launcher_config import FleetConfig
from client.placement import DeviceFlags
from client.process import ServiceStartError
from client.terminal import say_error
from paceline.errors import ConfigError, UnavailableError


def test_a_fleet_gives_the_router_the_addresses_of_its_targets_and_drafts(small_programs, tmp_path):
    config = FleetConfig(
        num_targets=2, num_drafts=1, tp_size=3, log_dir=str(tmp_path / "logs"), router_flags=("--policy", "off")
    )
    with Fleet(config) as fleet:
        targets = ",".join(process.address for process in fleet.targets)
        assert fleet.router_address == fleet.processes[0].address
        assert [process.name for process in fleet.processes] == ["router", "target-0", "target-1", "draft-0"]
    log = (tmp_path / "logs" / "router.log").read_text()
    assert f"--drain-timeout-s 10 --targets {targets} --drafts {fleet.drafts[0].address} --policy off" in log
    assert "--tp-size 3" in (tmp_path / "logs" / "target-1.log").read_text()
    assert not any(process.running for process in fleet.processes)


def test_the_services_of_a_fleet_with_mps_are_clients_of_its_daemon(small_programs, tmp_path):
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text(f'#!/bin/sh\necho "$* $(cat) $CUDA_MPS_PIPE_DIRECTORY" >> {tmp_path}/told\n')
    program.chmod(0o755)
    small_programs.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with Fleet(FleetConfig(mps=True)) as fleet:
        started, folder = (tmp_path / "told").read_text().split()
        assert started == "-d"
        for process in (*fleet.targets, *fleet.drafts):
            environment = Path(f"/proc/{process.pid}/environ").read_text().split("\0")
            assert f"CUDA_MPS_PIPE_DIRECTORY={folder}" in environment
    assert (tmp_path / "told").read_text().split() == ["-d", folder, "quit", folder]


def test_a_refusal_says_it_all_and_leaves_no_log_folder(small_programs):
    small_programs.setattr(launcher, "TARGET_MODULE", "refuses")
    fleet = Fleet(FleetConfig())
    with pytest.raises(ServiceStartError, match="target-0 did not start"):
        fleet.start()
    assert not any(process.running for process in fleet.processes)
    assert not fleet.log_dir.exists()


def test_a_crash_at_the_start_leaves_the_log_that_the_error_names(small_programs):
    small_programs.setattr(launcher, "TARGET_MODULE", "crashes")
    fleet = Fleet(FleetConfig())
    with pytest.raises(ServiceStartError, match=f"its log {fleet.log_dir}/target-0.log ends"):
        fleet.start()
    assert not any(process.running for process in fleet.processes)
    assert (fleet.log_dir / "target-0.log").exists()


def test_an_error_while_the_fleet_runs_gets_a_note_that_names_the_logs(small_programs, capsys):
    with pytest.raises(UnavailableError) as caught, Fleet(FleetConfig(num_drafts=0)) as fleet:
        raise UnavailableError("the answer did not come")
    assert (fleet.log_dir / "target-0.log").exists()
    say_error("paceline demo", caught.value)
    said = f"paceline demo: the answer did not come\nthe logs of the services: {fleet.log_dir}\n"
    assert capsys.readouterr().err == said


def test_devices_that_do_not_suffice_leave_no_log_folder(small_programs, modules):
    with pytest.raises(ConfigError, match=r"--tp-size is 9999|--device is cuda"):
        Fleet(FleetConfig(tp_size=9999, devices=DeviceFlags("cuda")))
    assert not list(modules.glob("paceline-logs-*"))


def test_a_temporary_log_folder_goes_with_a_fleet_that_ended_well(small_programs):
    with Fleet(FleetConfig(num_drafts=0)) as fleet:
        assert "--drafts" not in (fleet.log_dir / "router.log").read_text()
    assert not fleet.log_dir.exists()


def test_a_fleet_whose_router_links_with_nobody_says_why(small_programs, tmp_path):
    config = FleetConfig(
        router_flags=("--unlinked", "serves another head"), link_timeout_s=0.0, log_dir=str(tmp_path / "logs")
    )
    fleet = Fleet(config)
    with pytest.raises(ServiceStartError, match=r"not linked with all services: .*serves another head"):
        fleet.start()
    assert not any(process.running for process in fleet.processes)


def test_a_service_that_dies_before_all_are_linked_ends_the_start_at_once(small_programs, tmp_path):
    fleet = Fleet(FleetConfig(router_flags=("--unlinked", "no answer"), log_dir=str(tmp_path / "logs")))

    def kill_one(seconds: float) -> None:
        assert fleet.drafts[0].running, "a second look came after its end"
        fleet.drafts[0].terminate()
        while fleet.drafts[0].running:
            time.sleep(0.01)

    small_programs.setattr(launcher, "time", SimpleNamespace(monotonic=time.monotonic, sleep=kill_one))
    with pytest.raises(
        ServiceStartError, match=r"the draft-0 ended .* \(exit code 0\); its log \S+ ends:\nstarted with"
    ):
        fleet.start()


def test_a_service_that_the_router_does_not_take_ends_the_start_at_once(small_programs, tmp_path):
    config = FleetConfig(
        router_flags=("--refused", "serves head 1, the targets need 2"), log_dir=str(tmp_path / "logs")
    )

    def look_again(seconds: float) -> None:
        raise AssertionError("a second look changes nothing")

    small_programs.setattr(launcher, "time", SimpleNamespace(monotonic=time.monotonic, sleep=look_again))
    with pytest.raises(ServiceStartError, match=r"not linked with all services: .*serves head 1, the targets need 2"):
        Fleet(config).start()


def test_a_log_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--log-dir is .*/file/logs: .*; name a folder"):
        Fleet(FleetConfig(log_dir=str(tmp_path / "file" / "logs"))).start()
