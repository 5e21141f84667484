"""Ctrl-C while a service starts: a line and exit code 130, whatever it was importing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("service", "library"),
    [
        ("router", "prometheus_client"),
        ("draft_service", "prometheus_client"),
        ("target_service", "prometheus_client"),
        ("draft_service", "torch"),
        ("target_service", "torch"),
    ],
)
def test_ctrl_c_in_the_midst_of_an_import_ends_a_service_with_a_line(
    tmp_path: Path, service: str, library: str
) -> None:
    (tmp_path / f"{library}.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", service, "--port", "0", "--log-level", "warning"]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, f"{service}: interrupted\n")


def test_ctrl_c_past_the_imports_ends_a_program_once_it_has_cleaned_up() -> None:
    code = """
import os, signal
from paceline.interrupt import exiting_at_ctrl_c
with exiting_at_ctrl_c("program"):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        print("clean")
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "clean\n", "program: interrupted\n")
