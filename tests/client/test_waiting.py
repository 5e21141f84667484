"""What a command says while its request waits for a target."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from client import waiting
from client.cli import main
from paceline.v1 import router_pb2
from tests.support.scripted_router import answer_hello
from tests.support.waiting import WAIT_S

ROOT = Path(__file__).resolve().parents[2]


def test_a_request_that_waits_for_a_target_says_so_once_and_goes_on_waiting(router):
    gone = router_pb2.ReplicaState(address="127.0.0.1:2", message="nothing answers there")
    router.info = router_pb2.RouterServiceGetInfoResponse(targets=[gone])
    target_is_up = threading.Event()

    def answer(request, context):
        target_is_up.wait(WAIT_S)
        yield from answer_hello(request, context)

    router.script = answer
    command = [sys.executable, "-m", "client.cli", "generate", "hi", "--no-stats", "--router", router.address]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
        why = f"no target of the router at {router.address} is ready (127.0.0.1:2: nothing answers there)"
        assert process.stderr.readline() == f"waiting: {why}\n"
        target_is_up.set()
        assert process.communicate(timeout=WAIT_S) == ("Hello\n", "")
    assert process.returncode == 0


@pytest.mark.parametrize("command", [["generate", "hi", "--no-stats"], ["chat"]])
def test_off_a_terminal_a_request_that_a_ready_target_is_slow_with_waits_in_silence(
    command, router, monkeypatch, capsys
):
    monkeypatch.setattr(waiting, "_QUIET_S", 0.01)
    monkeypatch.setattr(sys, "stdin", io.StringIO("hi\n"))

    def answer(request, context):
        for _ in range(waiting._LONG_LOOKS + 3):  # one may be the chat's own; of the last it has not made anything yet
            assert router.info_asked.acquire(timeout=WAIT_S)
        yield from answer_hello(request, context)

    router.script = answer
    assert main([*command, "--router", router.address]) == 0
    assert "waiting" not in capsys.readouterr().err


@pytest.mark.parametrize("command", [["generate", "hi", "--no-stats"], ["chat"]])
def test_a_first_token_that_takes_long_is_told_once_to_a_terminal(command, router, monkeypatch, capsys):
    monkeypatch.setattr(waiting, "_QUIET_S", 0.01)
    monkeypatch.setattr(sys, "stdin", io.StringIO("hi\n"))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    ready = router_pb2.ReplicaState(address="127.0.0.1:2", ready=True, running_requests=3)
    router.info = router_pb2.RouterServiceGetInfoResponse(targets=[ready], queued_requests=2)

    def answer(request, context):
        for _ in range(waiting._LONG_LOOKS + 3):
            assert router.info_asked.acquire(timeout=WAIT_S)
        yield from answer_hello(request, context)

    router.script = answer
    assert main([*command, "--router", router.address]) == 0
    why = "a long prompt is read, or others go first (requests that run: 3, in the queue: 2)"
    assert [line for line in capsys.readouterr().err.splitlines() if "waiting" in line] == [f"waiting: {why}"]
