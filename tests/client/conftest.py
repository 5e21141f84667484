"""A router that answers as the test says, and small programs for the launcher."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from client import launcher
from tests.support.scripted_router import ScriptedRouter, running_router
from tests.support.small_services import write_programs


@pytest.fixture
def router() -> Iterator[ScriptedRouter]:
    with running_router() as router:
        yield router


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that ``python -m`` finds."""
    write_programs(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


@pytest.fixture
def small_programs(modules: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The launcher starts small programs instead of services; its temporary logs go with the test."""
    for name in ("TARGET_MODULE", "DRAFT_MODULE"):
        monkeypatch.setattr(launcher, name, "service")
    monkeypatch.setattr(launcher, "ROUTER_MODULE", "small_router")
    monkeypatch.setattr(launcher.tempfile, "tempdir", str(modules))
    return monkeypatch
