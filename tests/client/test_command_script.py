"""The script that is installed as ``paceline``: what Ctrl-C does before the command itself knows of it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CTRL_C = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """As an installation has it, beside its Python."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    return Path(shutil.copy(ROOT / "client" / "bin" / "paceline", tmp_path / "bin"))


def run(command: list[str | Path], modules: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(modules), str(ROOT)])}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_ctrl_c_while_python_looks_for_its_packages_ends_the_command_without_a_word(script, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(CTRL_C)
    ended = run([script, "--version"], tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


def test_ctrl_c_once_the_command_knows_of_it_is_a_line(script, tmp_path):
    (tmp_path / "grpc.py").write_text(CTRL_C)
    ended = run([script, "generate", "hi"], tmp_path)
    assert (ended.returncode, ended.stderr) == (130, "paceline generate: interrupted\n")


def test_where_ctrl_c_is_ignored_the_command_goes_on(script, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(CTRL_C)
    (tmp_path / "grpc.py").write_text("raise SystemExit('went on')\n")
    ended = run(["sh", "-c", 'trap "" INT; exec "$0" --version', script], tmp_path)
    assert (ended.returncode, ended.stderr) == (1, "went on\n")


def test_the_script_runs_by_a_link_to_it(script, tmp_path):
    (tmp_path / "elsewhere").symlink_to(script)
    (tmp_path / "grpc.py").write_text("import sys\nraise SystemExit(sys.executable)\n")
    ended = run([tmp_path / "elsewhere"], tmp_path)
    assert ended.stderr == f"{tmp_path}/bin/python\n"
