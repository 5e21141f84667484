"""What processes that share cores set up for their threads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paceline.threads import busy_wait_s, cores_within, share_cores


def test_thread_settings_of_the_users_own_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KMP_BLOCKTIME", "7")
    share_cores(2)
    assert os.environ["OMP_NUM_THREADS"] == "2"
    assert int(os.environ["GOMP_SPINCOUNT"]) > 0
    assert os.environ["KMP_BLOCKTIME"] == "7"


@pytest.mark.parametrize(("limit", "cores"), [("max 100000", 8), ("250000 100000", 3), ("5000 100000", 1)])
def test_a_containers_limit_counts_in_whole_cores(limit: str, cores: int, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text(limit + "\n")
    assert cores_within(tmp_path / "cpu.max", 8) == cores


def test_a_thread_waits_busily_where_a_gpu_computes_and_cores_are_left_unless_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("paceline.threads.num_cores", lambda: 16)
    assert busy_wait_s(None, beside_gpu=True) > 0
    assert busy_wait_s(None, beside_gpu=False) == busy_wait_s(0.0, beside_gpu=True) == 0
    assert busy_wait_s(2.5, beside_gpu=False) == 0.0025
    monkeypatch.setattr("paceline.threads.num_cores", lambda: 2)
    assert busy_wait_s(None, beside_gpu=True) == 0
