"""python -m router as its users start and stop it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from paceline.v1 import router_pb2, router_pb2_grpc
from tests.support.waiting import WAIT_S


def start(*flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "router", "--port", "0", *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_it_says_where_it_is_ready_answers_and_ends_by_sigterm() -> None:
    process = start("--targets", "127.0.0.1:9")
    try:
        assert process.stdout is not None
        word, address = process.stdout.readline().split()
        assert word == "ready"
        with grpc.insecure_channel(address) as channel:
            stub = router_pb2_grpc.RouterServiceStub(channel)
            info = stub.GetInfo(router_pb2.RouterServiceGetInfoRequest(), timeout=WAIT_S)
        assert info.targets[0].address == "127.0.0.1:9"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert out == ""
    assert "targets=127.0.0.1:9" in err
    assert "Traceback" not in err


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_an_ipv6_host_is_taken_with_brackets_and_without(host: str) -> None:
    process = start("--targets", "127.0.0.1:9", "--host", host, "--page-host", host, "--page-port", "0")
    try:
        assert process.stdout is not None
        word, address = process.stdout.readline().split()
        assert (word, address.rpartition(":")[0]) == ("ready", "[::1]")
        with grpc.insecure_channel(address) as channel:
            stub = router_pb2_grpc.RouterServiceStub(channel)
            stub.GetInfo(router_pb2.RouterServiceGetInfoRequest(), timeout=WAIT_S)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
    assert "the live page is at http://[::1]:" in err


def test_a_bad_flag_ends_it_with_a_message_and_code_2() -> None:
    process = start("--max-queued-requests", "0")
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (2, "")
    assert err == "router: --max-queued-requests is 0; it must be at least 1\n"


def test_a_flag_that_there_is_not_names_a_help_that_can_be_typed() -> None:
    out, err = start("--tragets", "127.0.0.1:9").communicate(timeout=WAIT_S)
    assert (out, err) == ("", "router: unrecognized arguments: --tragets 127.0.0.1:9; see python -m router --help\n")
    command = err.strip().rpartition("see python ")[2].split()
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert done.stdout.startswith("usage: python -m router [-h]")


def test_a_missing_tokenizer_ends_it_with_a_message_and_code_3() -> None:
    process = start("--model-path", "/nowhere")
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (3, "")
    assert "router: cannot read the tokenizer /nowhere/tokenizer.json" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--host", "no.such.host.invalid"], 2, "--port is 0, but nothing can listen on no.such.host.invalid:0: "),
        (["--page-port", "0", "--page-host", "192.0.2.1"], 2, "--page-port is 0, but nothing can listen on 192.0.2.1"),
        (["--tls-cert", "/no/cert", "--tls-key", "/no/key", "--tls-ca", "/no/ca"], 2, "/no/c"),
        (["--api-keys", "/no/keys"], 2, "--api-keys /no/keys cannot be read"),
        (["--model-path", "/no/model"], 3, "cannot read the tokenizer /no/model/tokenizer.json"),
    ],
)
def test_a_check_refuses_what_a_start_refuses_in_the_same_words(flags: list[str], code: int, words: str) -> None:
    runs = [start(*flags, "--check"), start(*flags)]
    said = [process.communicate(timeout=WAIT_S)[1].strip().rpartition("\n")[2] for process in runs]
    assert [process.returncode for process in runs] == [code, code]
    assert said[0] == said[1]
    assert said[0].startswith("router: ") and words in said[0]


def test_a_check_ends_with_0_or_with_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("acme sha256:short\n")
    runs = [
        start("--check", "--speculative-policy", "adaptive"),
        start("--check", "--api-keys", str(tmp_path / "keys")),
    ]
    outputs = [process.communicate(timeout=WAIT_S) for process in runs]
    assert [process.returncode for process in runs] == [0, 2]
    assert outputs[0] == ("", "")
    assert "router: " in outputs[1][1] and "Traceback" not in outputs[1][1]
