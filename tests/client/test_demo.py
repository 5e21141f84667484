"""``paceline demo``: what it says of two answers, and the whole of it with the real services."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from client.commands.demo import comparison
from client.completion import Completion
from paceline.stats import SpeculationStats
from paceline.types import FinishReason

ROOT = Path(__file__).resolve().parents[2]


def completion(tokens, last_s, stats=None):
    return Completion("r", "", (1,), tuple(tokens), FinishReason.LENGTH, stats or SpeculationStats(), 0.1, last_s)


def test_equal_answers_are_said_to_be_identical_with_their_speeds():
    fast = completion(range(11), 0.6, SpeculationStats(4, 4, 6, 60, (4, 2)))
    lines = "\n".join(comparison(fast, completion(range(11), 1.1), dtype="bfloat16"))
    assert "20.0" in lines
    assert "2.50" in lines
    assert "speedup: 2.00 x" in lines
    assert "identical tokens: yes" in lines


@pytest.mark.parametrize(("ours", "theirs", "place"), [([1, 2, 3], [1, 5, 3], 1), ([1, 2], [1, 2, 3], 2)])
def test_answers_that_part_are_said_to_with_the_place(ours, theirs, place):
    lines = comparison(completion(ours, 0.5), completion(theirs, 0.5), dtype="bfloat16")
    assert f"no, they part at token {place}" in lines[-2]
    assert "float32 is exact" in lines[-2]


@pytest.mark.slow
def test_the_demo_runs_from_start_to_end_and_leaves_no_process():
    command = [sys.executable, "-m", "client.cli", "demo", "--max-tokens", "24", "--dtype", "float32"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert "identical tokens: yes" in done.stdout
    pids = [int(pid) for pid in re.findall(r"pid (\d+)", done.stdout)]
    assert len(pids) == 3
    assert not any(psutil.pid_exists(pid) for pid in pids)
