"""When code is gone through while a thread waits: near the end of the usual wait, and not in the way of it."""

from __future__ import annotations

import pytest

from paceline.rehearsal_pace import RehearsalLength, RehearsalPace

TAKES_S = 0.0002


def waits(pace: RehearsalPace, *lengths_s: float, takes_s: float = TAKES_S) -> list[list[float]]:
    """When rehearsals of takes_s each began in each wait, since its beginning."""
    found: list[list[float]] = []
    now_s = 100.0
    for length_s in lengths_s:
        began_s, end_s = now_s, now_s + length_s
        pace.begin(now_s)
        found.append([])
        while pace.due_s < end_s:
            now_s = max(now_s, pace.due_s)
            found[-1].append(now_s - began_s)
            pace.rehearsed(now_s, now_s + takes_s)
            now_s += takes_s
        now_s = max(now_s, end_s)
        pace.came_s = now_s
    return found


def test_waits_alike_have_one_rehearsal_each_shortly_before_their_end() -> None:
    for length_s in (0.003, 0.0047, 0.009):
        for rehearsals in waits(RehearsalPace(), *[length_s] * 20)[10:]:
            (began_s,) = rehearsals
            assert length_s - 0.0015 < began_s < length_s - 2 * TAKES_S


def test_short_waits_have_none() -> None:
    assert not any(waits(RehearsalPace(), *[0.0015] * 10))


def test_one_that_lasts_longer_than_usual_has_one_every_other_millisecond() -> None:
    *_, last = waits(RehearsalPace(), *[0.004] * 10, 0.0205)
    assert len(last) == 1 + 7
    assert last[1:] == pytest.approx([0.006 + number * (0.002 + TAKES_S) for number in range(7)])


def test_one_that_comes_early_is_kept_by_no_rehearsal() -> None:
    *_, last = waits(RehearsalPace(), *[0.0047] * 10, 0.0035)
    assert not last


def test_one_rehearsal_that_took_long_moves_those_after_it_for_a_while_only() -> None:
    pace = RehearsalPace()
    waits(pace, *[0.004] * 10)
    waits(pace, 0.004, takes_s=0.02)
    for rehearsals in waits(pace, *[0.004] * 20)[10:]:
        (began_s,) = rehearsals
        assert 0.0025 < began_s < 0.004 - 2 * TAKES_S


def test_what_one_alone_took_longer_does_not_count_and_two_in_a_row_do() -> None:
    length = RehearsalLength(TAKES_S)
    for took_s in (0.02, TAKES_S, 0.02, TAKES_S):
        length.note(took_s)
    assert length.takes_s == pytest.approx(TAKES_S)
    length.note(0.02)
    length.note(0.02)
    assert length.takes_s > 0.005
