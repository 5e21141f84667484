"""How a question ends, by an end token, by the template's own words, or at its limit; and how answers are drawn."""

from __future__ import annotations

import numpy as np
import pytest

from training.seats import SeatRules, Seats
from training.sources import Opening

EOS = 2


def rules(joint: tuple[int, ...] = (), *, temperatures: tuple[float, ...] = (0.0,)) -> SeatRules:
    return SeatRules(
        joint=joint,
        question_ends=(EOS,),
        answer_ends=(EOS,),
        max_question=4,
        max_answer=3,
        max_opening=2,
        question_temperature=1.0,
        answer_temperatures=temperatures,
        seed=0,
    )


def answered(drawn: list[int], *, joint: tuple[int, ...]) -> tuple[list[int], tuple[int, int, int]]:
    """A conversation whose drawn tokens are given: its tokens, and its parts' starts and ends."""
    seats = Seats(2, rules(joint))
    seats.begin(1, 7, Opening(np.array([1, 30], np.int32), asks=True))
    for token in drawn:
        seats.fed[1] = seats.length[1]
        ended = seats.append(np.array([1]), np.array([token]))
    (conversation,) = ended
    assert conversation.number == 7 and seats.idle.tolist() == [0, 1]
    parts = (conversation.question_start, conversation.question_end, conversation.answer_start)
    return conversation.tokens.tolist(), parts


@pytest.mark.parametrize(
    ("drawn", "joint", "tokens", "parts"),
    [
        ([10, EOS, 20, EOS], (EOS, 31), [1, 30, 10, EOS, 31, 20, EOS], (2, 3, 5)),
        ([10, EOS, 20, EOS], (31, 32), [1, 30, 10, 31, 32, 20, EOS], (2, 3, 5)),
        ([10, 31, 32, 20, EOS], (31, 32), [1, 30, 10, 31, 32, 20, EOS], (2, 3, 5)),
        ([10, 11, 12, 13, 20, EOS], (31, 32), [1, 30, 10, 11, 12, 13, 31, 32, 20, EOS], (2, 6, 8)),
        ([10, EOS, 20, 21, 22], (EOS, 31), [1, 30, 10, EOS, 31, 20, 21, 22], (2, 3, 5)),
        ([EOS, 20, EOS], (EOS, 31), [1, 30, EOS, 31, 20, EOS], (2, 2, 4)),
    ],
)
def test_a_question_ends_by_its_end_token_the_templates_words_or_its_limit(
    drawn: list[int], joint: tuple[int, ...], tokens: list[int], parts: tuple[int, int, int]
) -> None:
    assert answered(drawn, joint=joint) == (tokens, parts)


def test_all_temperatures_are_taken_about_equally_often() -> None:
    drawn = [rules(temperatures=(0.0, 0.7, 1.0)).answer_temperature(number) for number in range(3000)]
    for temperature in (0.0, 0.7, 1.0):
        assert 900 < drawn.count(temperature) < 1100
