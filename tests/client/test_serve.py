"""``paceline serve`` over small programs: it keeps its services alive and stops them all."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

import psutil
import pytest

from client.cli import main
from client.commands import serve
from client.commands.serve_signals import EndSignals, say
from tests.support.waiting import WAIT_S

FLAGS = ["serve", "--port", "0", "--drafts", "2"]


@pytest.fixture
def signals():
    """serve sets its own handlers."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture
def clock():
    """What serve takes for the time: skipped_s later than it is."""
    return SimpleNamespace(skipped_s=0.0)


@pytest.fixture
def watched(small_programs, signals, clock):
    """Runs serve in this thread; calls the test's function at each of its looks at the services."""

    def run(on_look: Callable[[], None], *flags: str) -> int:
        def sleep(_: float) -> None:
            time.sleep(0.02)
            on_look()

        def now_s() -> float:
            return time.monotonic() + clock.skipped_s

        small_programs.setattr(serve, "time", SimpleNamespace(sleep=sleep, monotonic=now_s))
        return main([*FLAGS, *flags])

    return run


def test_serve_names_its_services_and_stops_them_at_sigterm(watched, capsys):
    before, children = psutil.Process().children(), []

    def look():
        children.extend(psutil.Process().children())
        os.kill(os.getpid(), signal.SIGTERM)

    assert watched(look) == 0
    out, err = capsys.readouterr()
    assert err == "stopping: running answers get up to 10 s; Ctrl-C again ends them now\n"
    assert re.findall(r"^(\S+) +127\.0\.0\.1:\d+  pid \d+$", out, re.M) == ["router", "target-0", "draft-0", "draft-1"]
    assert out.endswith("stopped\n")
    started = [child for child in children if child not in before]
    assert len(started) == 4
    assert not any(child.is_running() for child in started)


def test_a_second_ctrl_c_ends_all_at_once_and_leaves_no_logs(watched, small_programs, modules, capsys):
    small_programs.setattr("client.launcher.ROUTER_MODULE", "impatient_router")
    before = psutil.Process().children()
    assert watched(lambda: os.kill(os.getpid(), signal.SIGINT), "--router-args=--drain-timeout-s=1000") == 0
    out, err = capsys.readouterr()
    assert err == "stopping: running answers get up to 1000 s; Ctrl-C again ends them now\nending them now\n"
    assert out.endswith("stopped\n")
    assert not list(modules.glob("paceline-logs-*"))
    assert all(child in before for child in psutil.Process().children())


def test_two_ctrl_c_while_the_services_start_leave_nothing(watched, small_programs, modules, capsys):
    small_programs.setattr("client.launcher.TARGET_MODULE", "pressed_twice")
    before = psutil.Process().children()
    assert watched(lambda: None) == 0
    err = capsys.readouterr().err
    assert err == "stopping: services that start get up to 10 s; Ctrl-C again ends them now\nending them now\n"
    assert not list(modules.glob("paceline-logs-*"))
    assert all(child in before for child in psutil.Process().children())


def test_a_closed_terminal_stops_all_and_leaves_no_logs(watched, modules, capsys):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored
    assert watched(lambda: os.kill(os.getpid(), signal.SIGHUP)) == 0
    assert capsys.readouterr().out.endswith("stopped\n")
    assert not list(modules.glob("paceline-logs-*"))


def test_serve_ends_well_where_stderr_was_closed(watched, small_programs, modules, capsys):
    small_programs.setattr("sys.stderr", None)
    assert watched(lambda: os.kill(os.getpid(), signal.SIGTERM)) == 0
    sys.stderr.close()
    assert capsys.readouterr().out.endswith("stopped\n")
    assert list(modules.glob("paceline-logs-*")) == []


def test_under_nohup_a_closed_terminal_stops_nothing(watched, capsys):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    numbers = iter([signal.SIGHUP, signal.SIGHUP, signal.SIGTERM])
    assert watched(lambda: os.kill(os.getpid(), next(numbers))) == 0
    assert next(numbers, None) is None, "it went on after the first"
    assert capsys.readouterr().out.endswith("stopped\n")


def test_sighup_stays_ignored_under_nohup(signals):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    EndSignals("").listen()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_words_for_a_terminal_that_is_gone_go_nowhere():
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream:
        os.close(ours)
        say("stopping", stream)
        say("stopped", stream)


def test_serve_starts_a_service_that_dies_again_on_its_port(watched, capsys):
    printed = []

    def look():
        printed.append(capsys.readouterr().out)
        port, pid = re.search(r"draft-0 +127\.0\.0\.1:(\d+)  pid (\d+)", "".join(printed)).groups()
        if len(printed) == 1:
            os.kill(int(pid), signal.SIGKILL)
        elif back := re.search(r"^the draft-0 is back \(pid (\d+)\)$", "".join(printed), re.M):
            assert "the draft-0 ended (signal 9, Killed); starting it again" in "".join(printed)
            assert back[1] != pid
            socket.create_connection(("127.0.0.1", int(port)), timeout=WAIT_S).close()
            os.kill(os.getpid(), signal.SIGTERM)

    assert watched(look) == 0


def test_services_that_die_together_start_again_side_by_side(watched, small_programs, capsys):
    printed = []

    def look():
        printed.append(capsys.readouterr().out)
        said = "".join(printed)
        if len(printed) == 1:
            for pid in re.findall(r"^draft-\d .* pid (\d+)$", said, re.M):
                os.kill(int(pid), signal.SIGKILL)
        elif said.count(" is back ") == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    assert watched(look) == 0
    words = re.findall(r"^the draft-\d (ended|is back)", "".join(printed), re.M)
    assert words == ["ended", "ended", "is back", "is back"]


def test_serve_gives_up_on_a_service_that_keeps_dying(watched, monkeypatch, capsys):
    monkeypatch.setattr(serve, "_MAX_RESTARTS", 0)

    before = psutil.Process().children()

    def look():
        for child in psutil.Process().children():
            if child not in before:
                child.kill()

    assert watched(look) == 1
    assert "ended (signal 9, Killed); deaths in 10 minutes: 1" in capsys.readouterr().err
    assert all(child in before for child in psutil.Process().children())


def test_deaths_long_ago_do_not_count(watched, monkeypatch, capsys, clock):
    monkeypatch.setattr(serve, "_MAX_RESTARTS", 1)
    before, printed = psutil.Process().children(), []

    def look():
        printed.append(capsys.readouterr().out)
        said = "".join(printed)
        if said.count("the target-0 ended (signal 9, Killed); starting it again") == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        elif said.count(" ended ") == said.count(" is back "):  # all run
            clock.skipped_s += 700
            for child in psutil.Process().children():
                if child not in before:
                    child.kill()

    assert watched(look) == 0


def test_a_service_that_refuses_its_flags_ends_serve_with_its_words_and_code(watched, small_programs, capsys):
    small_programs.setattr("client.launcher.TARGET_MODULE", "refuses")
    assert watched(lambda: None) == 2
    assert "the target-0 did not start: target: --dtype is int3" in capsys.readouterr().err
