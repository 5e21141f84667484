"""What an operator gets wrong: each is a message that names it and an exit code, and the rest of the fleet goes on."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from client.cli import main
from client.client import PacelineClient
from client.launcher import Fleet
from client.process import ServiceProcess
from client.request import Sampling
from tests.support.certificates import Authority
from tests.support.services import ROOT, TREE, WAIT_S, ask, wait_until

pytestmark = pytest.mark.slow

Flags = Callable[[Path, int], list[str]]  # of a scratch folder and a port that is taken


def tls_flags(folder: Path, key_of: str) -> list[str]:
    """A certificate with the key of the named one."""
    authority = Authority(folder)
    files = {name: authority.issue(name) for name in ("mine", "another")}
    return ["--tls-cert", files["mine"].cert, "--tls-key", files[key_of].key, "--tls-ca", files["mine"].ca]


def flags_folder(folder: Path, name: str) -> list[str]:
    (folder / name).write_text("1\n")
    return ["--config", str(folder)]


def keys_file(folder: Path) -> list[str]:
    (folder / "keys.txt").write_text("acme pl_the-key-itself\n")
    return ["--api-keys", str(folder / "keys.txt")]


BAD_STARTS: dict[str, tuple[str, Flags, str]] = {
    "no certificate": (
        "router",
        lambda _, __: ["--tls-cert", "/no/cert", "--tls-key", "/no", "--tls-ca", "/no"],
        "/no",
    ),
    "another key": ("router", lambda folder, _: tls_flags(folder, "another"), "another-key.pem"),
    "half of it": ("router", lambda folder, _: tls_flags(folder, "mine")[:2], "--tls-key"),
    "unknown key": ("target_service", lambda folder, _: flags_folder(folder, "tp-sise"), "tp-sise"),
    "taken port": ("router", lambda _, port: ["--port", str(port)], "--port"),
    "taken metrics port": ("router", lambda _, port: ["--metrics-port", str(port)], "--metrics-port"),
    "taken page port": ("router", lambda _, port: ["--page-port", str(port)], "--page-port"),
    "keys in the clear": ("router", lambda folder, _: keys_file(folder), "line 1"),
    "no keys file": ("router", lambda _, __: ["--api-keys", "/no/keys"], "/no/keys"),
    "no name": ("router", lambda _, __: ["--targets", "dns:///paceline-target"], "dns:///name:port"),
    "no GPU": ("draft_service", lambda _, __: ["--device", "cuda"], "--device cpu"),
    "too little memory": ("draft_service", lambda _, __: ["--max-total-tokens", str(10**12)], "--max-total-tokens"),
}


@pytest.mark.parametrize("name", BAD_STARTS)
def test_a_service_that_cannot_start_names_what_to_mend_and_exits_with_2(name: str, tmp_path: Path) -> None:
    module, flags, words = BAD_STARTS[name]
    if name == "no GPU" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        given = ["--port", "0", *flags(tmp_path, taken.getsockname()[1])]
        command = [sys.executable, "-m", module, *given]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=WAIT_S, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert (done.returncode, last.startswith(f"{module}: ")) == (2, True), done.stderr
    assert words in last and "Traceback" not in done.stderr
    assert "pl_the-key-itself" not in done.stderr


def test_a_router_with_wrong_names_in_its_lists_serves_with_the_right_ones_and_the_doctor_names_the_others(
    fp32_fleet: Fleet, prompts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, draft = fp32_fleet.targets[0].address, fp32_fleet.drafts[0].address
    drafts = tmp_path / "drafts"
    drafts.write_text(f"{draft}\n127.0.0.1:1  # nobody\n{target}  # not a draft\n")
    flags = ["--targets", f"{target},127.0.0.1:2,{draft},dns:///nobody.invalid:7200", "--drafts", f"file://{drafts}"]
    router = ServiceProcess("router", "router", flags=flags, port=0, log_path=tmp_path / "router.log")
    router.start()
    try:
        router.wait_ready(time.monotonic() + WAIT_S)
        with PacelineClient(router.address, request_timeout_s=WAIT_S) as client:
            wait_until(lambda: is_linked(client), "the router has a target and a draft")
            answer = ask(client, prompts[0], Sampling(max_tokens=12, ignore_eos=True), TREE)
            assert answer.stats.speculative_rounds
            code = main(["doctor", "--router", router.address, "--json"])
    finally:
        router.kill()
    problems = {found["subject"]: found for found in json.loads(capsys.readouterr().out) if found["level"] == "problem"}
    assert code == 1
    assert problems.keys() == {"target 127.0.0.1:2", f"target {draft}", "draft 127.0.0.1:1", f"draft {target}"}
    assert all(found["message"] and found["remedy"] for found in problems.values())
    assert "dns:///nobody.invalid:7200" in router.log_path.read_text()


def is_linked(client: PacelineClient) -> bool:
    info = client.info()
    return all(any(replica.ready for replica in replicas) for replicas in (info.targets, info.drafts))
