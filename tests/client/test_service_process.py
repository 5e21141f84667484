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

import psutil
import pytest

from client import launcher
from client.process import ServiceProcess, ServiceStartError
from paceline.errors import UnavailableError
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
