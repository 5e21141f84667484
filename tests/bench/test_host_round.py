"""The bench of whole rounds leaves nothing behind, however it ends."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.waiting import WAIT_S

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow  # it imports torch
def test_sigterm_ends_the_services_and_says_nothing() -> None:
    command = [sys.executable, "-m", "bench.host_round", "--batch", "1"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as bench:
        deadline = time.monotonic() + WAIT_S
        while not (services := services_of(bench.pid)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        bench.terminate()
        _, said = bench.communicate()
    assert (bench.returncode, said) == (143, "")
    assert not any(service.is_running() for service in services)


def services_of(pid: int) -> list[psutil.Process]:
    """That the bench has started by now, and told what they are to do: they have threads then."""
    children = psutil.Process(pid).children()
    return [child for child in children if "spawn_main" in " ".join(child.cmdline()) and child.num_threads() > 1]
