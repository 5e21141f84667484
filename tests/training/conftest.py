"""A tiny target that can be asked, its data and a trained head, made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.tiny_target import TinyTarget
from tests.support.tiny_training import save_chat_target, small_config
from training.pipeline import Pipeline


@pytest.fixture(scope="session")
def chat_target(tmp_path_factory: pytest.TempPathFactory) -> TinyTarget:
    return save_chat_target(tmp_path_factory.mktemp("chat_target"))


@pytest.fixture(scope="session")
def trained_once(chat_target: TinyTarget, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An OUT folder with data, a checkpoint and a head; to be copied, not changed."""
    out = tmp_path_factory.mktemp("trained") / "out"
    Pipeline(small_config(chat_target.model_path, out, "--do=synthesise,train,export")).run()
    return out


@pytest.fixture
def trained(trained_once: Path, tmp_path: Path) -> Path:
    """A copy of ``trained_once``."""
    return Path(shutil.copytree(trained_once, tmp_path / "out"))
