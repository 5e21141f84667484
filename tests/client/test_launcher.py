"""Services as child processes: small real programs stand where the services would."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from client import launcher
from client.launcher import Fleet
from client.launcher_config import FleetConfig
from client.placement import DeviceFlags
from client.process import ServiceProcess, ServiceStartError
from client.terminal import say_error
from paceline.errors import ConfigError, UnavailableError
from tests.support.waiting import WAIT_S

LAUNCHER = """
    import sys, time
    from pathlib import Path
    from client.process import ServiceProcess
    process = ServiceProcess("child", "silent", flags=[], port=0, log_path=Path(sys.argv[1]))
    process.start()
    print(process.pid, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def started(modules):
    """Starts a program as a service and stops it whatever happens."""
    with contextlib.ExitStack() as stack:

        def start(module: str, *flags: str) -> ServiceProcess:
            process = ServiceProcess(module, module, flags=flags, port=0, log_path=modules / f"{module}.log")
            process.start()
            stack.callback(process.kill)
            return process

        yield start


def soon() -> float:
    return time.monotonic() + WAIT_S


def gone(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        with contextlib.suppress(psutil.TimeoutExpired):
            process.wait(WAIT_S)
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


def test_a_service_is_ready_at_the_address_that_it_prints_and_drains_at_the_end(started):
    process = started("service", "--x", "1")
    host, _, port = process.wait_ready(soon()).partition(":")
    assert (host, int(port) > 0, process.running) == ("127.0.0.1", True, True)
    assert process.stop(grace_s=WAIT_S) == 0
    assert process.log_path.read_text() == "started with --x 1\ndrained\n"


def test_a_killed_service_comes_back_on_its_port(started):
    process = started("service")
    address = process.wait_ready(soon())
    first = process.pid
    process.kill()
    assert (process.running, process.exit_code) == (False, -signal.SIGKILL)
    assert process.restart(timeout_s=WAIT_S) == address
    assert process.pid != first


def test_a_service_that_was_killed_by_someone_else_can_be_restarted_too(started):
    process = started("service")
    address = process.wait_ready(soon())
    os.kill(process.pid, signal.SIGKILL)
    assert gone(process.pid)
    assert process.restart(timeout_s=WAIT_S) == address


def test_a_service_that_will_not_end_is_killed_after_the_grace(started):
    process = started("stubborn")
    process.wait_ready(soon())
    assert process.stop(grace_s=0.1) == -signal.SIGKILL


def test_a_refusal_keeps_the_services_own_words_and_exit_code(started):
    with pytest.raises(ServiceStartError, match="did not start: target: --dtype is int3") as caught:
        started("refuses").wait_ready(soon())
    assert caught.value.exit_code == 2
    assert "a line of log" not in str(caught.value)


def test_a_crash_shows_the_end_of_the_log_and_its_place(started):
    process = started("crashes")
    with pytest.raises(ServiceStartError, match="a bug of ours") as caught:
        process.wait_ready(soon())
    assert str(process.log_path) in str(caught.value)
    assert caught.value.exit_code == 1


def test_a_service_that_is_not_ready_in_time_is_named(started):
    with pytest.raises(ServiceStartError, match="silent was not ready in time"):
        started("silent").wait_ready(time.monotonic() + 0.05)


def test_a_taken_port_is_a_clear_error(started, modules):
    taken = started("service")
    port = int(taken.wait_ready(soon()).rpartition(":")[2])
    process = ServiceProcess("second", "service", flags=[], port=port, log_path=modules / "second.log")
    process.start()
    with pytest.raises(ServiceStartError, match="already in use"):
        process.wait_ready(soon())
    process.kill()


def test_stopping_a_service_stops_the_children_that_it_left(started):
    process = started("parent_of_another")
    child = int(process.wait_ready(soon()).partition(":")[0])
    process.kill()
    assert gone(child)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's word on a dead parent is Linux's")
def test_a_service_dies_with_its_launcher(modules):
    command = [sys.executable, "-c", textwrap.dedent(LAUNCHER), str(modules / "log")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(modules), str(Path(launcher.__file__).parent.parent)])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as parent:
        child = int(parent.stdout.readline())
        parent.kill()
    assert gone(child)


def test_usage_counts_memory_and_ends_with_the_process(started):
    process = started("service")
    process.wait_ready(soon())
    usage = process.usage()
    assert usage.rss_bytes > 1_000_000
    assert usage.cpu_s > 0
    process.kill()
    with pytest.raises(UnavailableError, match="service has ended"):
        process.usage()


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


@pytest.mark.parametrize(
    ("values", "flag"),
    [
        ({"num_targets": 0}, "--targets"),
        ({"num_drafts": -1}, "--drafts"),
        ({"router_port": 70000}, "--port"),
        (
            {"router_flags": ("--port", "7000")},
            "--router-args has --port, .*: name the router's with --port itself",
        ),
        ({"target_flags": ("--port=7000",)}, "--target-args has --port=7000, .*: each takes a free one"),
        ({"draft_flags": ("--dtype", "float32", "--port", "1")}, "--draft-args has --port"),
        ({"router_flags": ("--targets=a:1",)}, "--router-args has --targets=a:1, .*; --targets itself says how many"),
        ({"target_flags": ("--tp-size", "3")}, "--target-args has --tp-size, .*: --tp-size itself"),
        ({"target_flags": ("--base-gpu-id=1",)}, "--target-args has --base-gpu-id=1, .*--target-devices"),
        ({"draft_flags": ("--device=cpu",)}, "--draft-args has --device=cpu, .*--draft-devices"),
        ({"draft_flags": ("--tls-cert=x",)}, "--draft-args has --tls-cert=x, .*: --tls-cert itself is for all"),
        ({"start_timeout_s": 0.0}, "--start-timeout-s is 0.0; it must be a number of seconds above 0"),
        ({"start_timeout_s": float("nan")}, "--start-timeout-s is nan"),
        ({"start_timeout_s": float("inf")}, "--start-timeout-s is inf"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused_by_its_flag(values, flag):
    with pytest.raises(ConfigError, match=flag):
        FleetConfig(**values)


@pytest.mark.parametrize(
    ("flags", "drain_s"),
    [
        ((), 10.0),
        (("--drain-timeout-s", "60"), 60.0),
        (("--policy", "off", "--drain-timeout-s=0.5"), 0.5),
        (("--drain-timeout-s", "soon"), 10.0),
    ],
)
def test_running_answers_get_what_the_router_is_told(flags, drain_s):
    assert FleetConfig(router_flags=flags).drain_timeout_s == drain_s


def test_a_log_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--log-dir is .*/file/logs: .*; name a folder"):
        Fleet(FleetConfig(log_dir=str(tmp_path / "file" / "logs"))).start()
