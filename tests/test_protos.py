"""The protos are clean, their generated code is current, and they break no peer that speaks the baseline."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BASELINE = ROOT / "protos" / "baseline.binpb"


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=200, check=False)


def buf(*args: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    beside_python = Path(sys.executable).with_name("buf")
    return run(str(beside_python) if beside_python.exists() else "buf", *args, cwd=cwd)


@pytest.fixture
def edited(tmp_path: Path) -> Path:
    """A copy of the protos, to change."""
    shutil.copytree(ROOT / "protos", tmp_path / "protos")
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    return tmp_path


def test_the_protos_pass_the_linter() -> None:
    result = buf("lint")
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_protos_are_formatted() -> None:
    result = buf("format", "--diff", "--exit-code")
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_generated_code_is_what_the_protos_say() -> None:
    result = run(sys.executable, "scripts/gen_protos.py", "--check")
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_protos_break_nothing_since_the_baseline() -> None:
    result = buf("breaking", "--against", str(BASELINE))
    advice = "\nWhere a break is meant and no release speaks the old form: make proto-baseline"
    assert result.returncode == 0, result.stdout + result.stderr + advice


def test_a_renumbered_field_is_caught(edited: Path) -> None:
    proto = edited / "protos" / "paceline" / "v1" / "common.proto"
    source = proto.read_text()
    assert "double temperature = 2;" in source
    proto.write_text(source.replace("double temperature = 2;", "double temperature = 99;"))
    result = buf("breaking", "--against", str(BASELINE), cwd=edited)
    assert result.returncode != 0
    assert "SamplingParams" in result.stdout
