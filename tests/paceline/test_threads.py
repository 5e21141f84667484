"""OpenMP settings of processes that share cores."""

from __future__ import annotations

import os

import pytest

from paceline.threads import share_cores


def test_thread_settings_of_the_users_own_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KMP_BLOCKTIME", "7")
    share_cores(2)
    assert os.environ["OMP_NUM_THREADS"] == "2"
    assert int(os.environ["GOMP_SPINCOUNT"]) > 0
    assert os.environ["KMP_BLOCKTIME"] == "7"
