"""The bench of the host's share of a step: each kind is stepped as often as it is asked to be."""

from __future__ import annotations

import pytest

from bench.host_path import HostRun, Pauses

NO_PAUSE = Pauses(0.0, 0.0, is_busy=False, rehearses=False)
ROW_BYTES = 2 * 64


@pytest.mark.parametrize("kind", ["plain", "trees", "off"])
@pytest.mark.parametrize("num_copied", [512, 8], ids=["all", "one tree's"])
def test_steps_are_timed_whether_or_not_the_host_gets_all_rows(
    monkeypatch: pytest.MonkeyPatch, kind: str, num_copied: int
) -> None:
    monkeypatch.setattr("target_service.feature_rows.MAX_COPIED_BYTES", num_copied * ROW_BYTES)
    run = HostRun(kind, 4, 6, feature_size=64, pauses=NO_PAUSE)
    parts = run.run()
    assert [len(values) for values in (run.gap_us, run.launch_us, run.engine_us, run.front_us)] == [6] * 4
    assert 0 < parts["launch"] < parts["engine"]
    if kind == "trees":
        assert len(run.ask_us) == 6
        assert 0 < parts["ask"] < parts["gap"]


def test_with_rehearsals_plain_decoding_without_a_draft_is_timed_too() -> None:
    run = HostRun("plain", 1, 2, feature_size=64, pauses=Pauses(0.0, 0.0, is_busy=True, rehearses=True))
    assert run.run()["gap"] > 0
