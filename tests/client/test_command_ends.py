"""How the ``paceline`` command's process ends: Ctrl-C, a reader that is gone, a full device, a closed stream."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from paceline.v1 import router_pb2
from tests.support.waiting import WAIT_S

ROOT = Path(__file__).resolve().parents[2]
THE_COMMAND = ["-c", "from client.cli import main; raise SystemExit(main())", "generate", "hi"]


def answer_long(request, context):
    """A first token, then nothing until the client is gone."""
    stopped = threading.Event()
    context.add_callback(stopped.set)
    yield router_pb2.GenerateResponse(text="Once", token_ids=[5], prompt_ids=[1])
    stopped.wait(WAIT_S)


def test_ctrl_c_cancels_the_request_on_the_router(router):
    router.script = answer_long
    command = [sys.executable, "-m", "client.cli", "generate", "hi", "--router", router.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout.read(4) == b"Once"
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 130
    assert router.ended.wait(WAIT_S)


def test_a_reader_that_goes_away_ends_the_command_quietly(router):
    router.script = answer_long
    command = [sys.executable, "-m", "client.cli", "info", "--router", router.address]
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, cwd=ROOT, timeout=WAIT_S, check=False)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("argv", [THE_COMMAND, ["-m", "client.start", "paceline generate", "grpc"]])
def test_ctrl_c_while_a_command_is_still_imported_is_one_line(argv, tmp_path):
    (tmp_path / "grpc.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, *argv], env=env, **pipes) as process:
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=WAIT_S)[1] == "paceline generate: interrupted\n"
    assert process.returncode == 130


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the full device is Linux's")
@pytest.mark.parametrize(("argv", "unbuffered"), [(["info"], ""), (["generate", "hi"], "1")])
def test_a_full_device_is_one_line_on_stderr(router, argv, unbuffered):
    command = [sys.executable, "-m", "client.cli", *argv, "--router", router.address]
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=env, check=False)
    assert done.returncode == 1
    words = "the output cannot be written: No space left on device; make room, or write elsewhere"
    assert done.stderr == f"paceline {argv[0]}: {words}\n"


@pytest.mark.parametrize(
    ("words", "closed", "code", "out", "err"),
    [
        (["info"], ">&-", 0, "", ""),
        (
            ["generate", "-"],
            "<&-",
            2,
            "",
            "paceline generate: stdin holds no prompt: see whether what writes it has failed\n",
        ),
        (["chat"], "<&-", 0, "", None),
        (["generate"], "2>&-", 2, "", ""),
        (["info"], "<&- >&- 2>&-", 0, "", ""),
    ],
)
def test_a_closed_stream_is_the_null_device(router, words, closed, code, out, err):
    command = [sys.executable, "-m", "client.cli", *words, "--router", router.address]
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *command]
    done = subprocess.run(shell, capture_output=True, text=True, cwd=ROOT, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stdout) == (code, out)
    assert "Traceback" not in done.stderr if err is None else done.stderr == err
