"""Which C extension counts: one that has every call of the sources beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from kernels import extension
from kernels.extension import EXTENSION, lacking
from tests.support.extension import needs_extension

ROOT = Path(__file__).resolve().parents[2]
SOURCES = Path(extension.__file__).with_name("cpu_ops") / "csrc"


def test_every_call_of_the_sources_is_asked_for() -> None:
    calls = lacking(object(), SOURCES)
    assert {"linear", "isas", "load_batch", "growth_tables", "plan_step", "read_extend", "survey"} <= set(calls)
    assert lacking(SimpleNamespace(**dict.fromkeys(calls)), SOURCES) == []
    assert lacking(SimpleNamespace(**dict.fromkeys(set(calls) - {"survey"})), SOURCES) == ["survey"]


@needs_extension
def test_what_is_built_here_has_them_all() -> None:
    assert lacking(EXTENSION, SOURCES) == []


def test_without_sources_there_is_nothing_to_lack(tmp_path: Path) -> None:
    assert lacking(object(), tmp_path / "csrc") == []


def test_an_older_extension_counts_as_none_and_says_what_to_do(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "kernels", tmp_path / "kernels", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (tmp_path / "kernels" / "cpu_ops" / "_native.py").write_text("def linear(): ...\n")
    code = "from kernels.extension import EXTENSION, MISSING; print(EXTENSION, MISSING)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    assert said.startswith("None kernels.cpu_ops._native was built from older sources, without answered_stream, ")
    assert said.endswith("; run make setup\n")
