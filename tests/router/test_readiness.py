"""Since when a peer is ready, or is not."""

from __future__ import annotations

from router.readiness import Readiness


def test_the_time_counts_from_the_last_change_and_not_from_the_last_word() -> None:
    now_s = 100.0
    readiness = Readiness(lambda: now_s)
    now_s = 103.0
    readiness.note(False)
    assert readiness.unchanged_s == 3.0
    readiness.note(True)
    now_s = 110.0
    readiness.note(True)
    assert readiness.unchanged_s == 7.0
    readiness.note(False)
    assert readiness.unchanged_s == 0.0
