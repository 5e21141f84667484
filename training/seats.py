"""Seats: the sequences that decode together, as columns. No tensors; nothing here runs once a token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from training.conversation import Conversation
from training.sources import Opening

IDLE = -1
_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class SeatRules:
    """When a question or an answer ends, and how both are drawn."""

    joint: tuple[int, ...]  # follows a question
    question_ends: tuple[int, ...]
    answer_ends: tuple[int, ...]
    max_question: int  # tokens
    max_answer: int
    max_opening: int
    question_temperature: float
    answer_temperatures: tuple[float, ...]
    seed: int

    @property
    def capacity(self) -> int:
        """Tokens of the longest sequence."""
        return self.max_opening + self.max_question + len(self.joint) + self.max_answer

    def draw_seed(self, number: int, *, of_answer: bool) -> int:
        """uint64, of the noise that a part of a conversation is drawn with."""
        return mixed(self.seed, 2 * number + of_answer)

    def answer_temperature(self, number: int) -> float:
        return self.answer_temperatures[mixed(self.seed + 1, number) % len(self.answer_temperatures)]


class Seats:
    """A seat holds tokens [0, length), of which the KV of [0, fed) lies in its pages."""

    def __init__(self, num_seats: int, rules: SeatRules) -> None:
        self._rules = rules
        self._joint = np.array(rules.joint, np.int32)
        # A joint that begins with an end token is not met otherwise.
        self._looks_for_joint = bool(rules.joint) and rules.joint[0] not in rules.question_ends
        self._question_ends, self._answer_ends = np.array(rules.question_ends), np.array(rules.answer_ends)
        self.tokens = np.zeros((num_seats, rules.capacity), np.int32)
        self.number = np.full(num_seats, IDLE, np.int64)
        self.length = np.zeros(num_seats, np.int64)
        self.fed = np.zeros(num_seats, np.int64)
        self.seed = np.zeros(num_seats, np.uint64)
        self.temperature = np.zeros(num_seats, np.float32)
        self._asks = np.zeros(num_seats, np.bool_)
        self._limit = np.zeros(num_seats, np.int64)  # of length
        self._question = np.zeros((num_seats, 2), np.int64)  # start, end
        self._answer_start = np.zeros(num_seats, np.int64)

    @property
    def idle(self) -> np.ndarray:
        """int64: seats without a sequence."""
        return np.flatnonzero(self.number == IDLE)

    @property
    def pending(self) -> np.ndarray:
        """[seats] int64: tokens without KV; 0 in an idle seat."""
        return np.where(self.number == IDLE, 0, self.length - self.fed)

    def begin(self, seat: int, number: int, opening: Opening) -> None:
        """MUTATES the seat, which is idle."""
        size = len(opening.tokens)
        self.number[seat] = number
        self.tokens[seat, :size] = opening.tokens
        self.length[seat], self.fed[seat] = size, 0
        self._question[seat] = size
        self._asks[seat] = opening.asks
        if opening.asks:
            self._limit[seat] = size + self._rules.max_question
            self.temperature[seat] = self._rules.question_temperature
            self.seed[seat] = self._rules.draw_seed(number, of_answer=False)
        else:
            self._begin_answer(seat)

    def append(self, seats: np.ndarray, tokens: np.ndarray) -> list[Conversation]:
        """A drawn token for each seat int64; all before it is fed. Returns the conversations that ended, and frees
        their seats."""
        self.tokens[seats, self.length[seats]] = tokens
        self.length[seats] += 1
        asking = self._asks[seats]
        is_full = self.length[seats] >= self._limit[seats]
        ended = [self._end(seat) for seat in seats[~asking & (is_full | _is_any(tokens, self._answer_ends))].tolist()]
        self._end_questions(seats[asking], tokens[asking], is_full[asking])
        return ended

    def _end_questions(self, seats: np.ndarray, tokens: np.ndarray, is_full: np.ndarray) -> None:
        """Of the seats that ask: those whose question ended are given the joint, and answer."""
        width = len(self._joint)
        by_token, spells_joint = _is_any(tokens, self._question_ends), np.zeros(len(seats), np.bool_)
        if self._looks_for_joint:
            places = self.length[seats][:, None] + np.arange(-width, 0)
            spells_joint = (self.tokens[seats[:, None], places.clip(0)] == self._joint).all(axis=1)
            spells_joint &= self.length[seats] - width >= self._question[seats, 0]
        for i in np.flatnonzero(by_token | spells_joint | is_full).tolist():
            seat = int(seats[i])
            end = self.length[seat] - (width if spells_joint[i] else int(by_token[i]))
            self._question[seat, 1] = end
            self.tokens[seat, end : end + width] = self._joint
            self.length[seat] = end + width
            self._begin_answer(seat)

    def _begin_answer(self, seat: int) -> None:
        number = int(self.number[seat])
        self._asks[seat] = False
        self._answer_start[seat] = self.length[seat]
        self._limit[seat] = self.length[seat] + self._rules.max_answer
        self.temperature[seat] = self._rules.answer_temperature(number)
        self.seed[seat] = self._rules.draw_seed(number, of_answer=True)

    def _end(self, seat: int) -> Conversation:
        start, end = self._question[seat].tolist()
        tokens = self.tokens[seat, : self.length[seat]].copy()
        conversation = Conversation(
            number=int(self.number[seat]),
            tokens=tokens,
            question_start=start,
            question_end=end,
            answer_start=int(self._answer_start[seat]),
            temperature=float(self.temperature[seat]),
            is_ended=int(tokens[-1]) in self._rules.answer_ends,
        )
        self.number[seat] = IDLE
        return conversation


def _is_any(tokens: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """[n] bool; a few times faster than numpy's isin for a few ends."""
    found: np.ndarray = (tokens[:, None] == ends).any(axis=1)
    return found


def mixed(seed: int, number: int) -> int:
    """uint64: a hash of both (SplitMix64's finaliser; Steele et al., OOPSLA 2014)."""
    z = (seed * 0xD1342543DE82EF95 + number * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
