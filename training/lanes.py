"""Lanes: the sequences that decode together, as columns. No tensors; nothing here runs once a token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from training.conversation import Conversation
from training.sources import Opening

IDLE = -1
_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class LaneRules:
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


class Lanes:
    """A lane holds tokens [0, length), of which the KV of [0, fed) lies in its pages."""

    def __init__(self, num_lanes: int, rules: LaneRules) -> None:
        self._rules = rules
        self._joint = np.array(rules.joint, np.int32)
        # A joint that begins with an end token is not met otherwise.
        self._looks_for_joint = bool(rules.joint) and rules.joint[0] not in rules.question_ends
        self._question_ends, self._answer_ends = np.array(rules.question_ends), np.array(rules.answer_ends)
        self.tokens = np.zeros((num_lanes, rules.capacity), np.int32)
        self.number = np.full(num_lanes, IDLE, np.int64)
        self.length = np.zeros(num_lanes, np.int64)
        self.fed = np.zeros(num_lanes, np.int64)
        self.seed = np.zeros(num_lanes, np.uint64)
        self.temperature = np.zeros(num_lanes, np.float32)
        self._asks = np.zeros(num_lanes, np.bool_)
        self._limit = np.zeros(num_lanes, np.int64)  # of length
        self._question = np.zeros((num_lanes, 2), np.int64)  # start, end
        self._answer_start = np.zeros(num_lanes, np.int64)

    @property
    def idle(self) -> np.ndarray:
        """int64: lanes without a sequence."""
        return np.flatnonzero(self.number == IDLE)

    @property
    def pending(self) -> np.ndarray:
        """[lanes] int64: tokens without KV; 0 in an idle lane."""
        return np.where(self.number == IDLE, 0, self.length - self.fed)

    def begin(self, lane: int, number: int, opening: Opening) -> None:
        """MUTATES the lane, which is idle."""
        size = len(opening.tokens)
        self.number[lane] = number
        self.tokens[lane, :size] = opening.tokens
        self.length[lane], self.fed[lane] = size, 0
        self._question[lane] = size
        self._asks[lane] = opening.asks
        if opening.asks:
            self._limit[lane] = size + self._rules.max_question
            self.temperature[lane] = self._rules.question_temperature
            self.seed[lane] = self._rules.draw_seed(number, of_answer=False)
        else:
            self._begin_answer(lane)

    def append(self, lanes: np.ndarray, tokens: np.ndarray) -> list[Conversation]:
        """A drawn token for each lane int64; all before it is fed. Returns the conversations that ended, and frees
        their lanes."""
        self.tokens[lanes, self.length[lanes]] = tokens
        self.length[lanes] += 1
        asking = self._asks[lanes]
        is_full = self.length[lanes] >= self._limit[lanes]
        ended = [self._end(lane) for lane in lanes[~asking & (is_full | _is_any(tokens, self._answer_ends))].tolist()]
        self._end_questions(lanes[asking], tokens[asking], is_full[asking])
        return ended

    def _end_questions(self, lanes: np.ndarray, tokens: np.ndarray, is_full: np.ndarray) -> None:
        """Of the lanes that ask: those whose question ended are given the joint, and answer."""
        width = len(self._joint)
        by_token, spells_joint = _is_any(tokens, self._question_ends), np.zeros(len(lanes), np.bool_)
        if self._looks_for_joint:
            places = self.length[lanes][:, None] + np.arange(-width, 0)
            spells_joint = (self.tokens[lanes[:, None], places.clip(0)] == self._joint).all(axis=1)
            spells_joint &= self.length[lanes] - width >= self._question[lanes, 0]
        for i in np.flatnonzero(by_token | spells_joint | is_full).tolist():
            lane = int(lanes[i])
            end = self.length[lane] - (width if spells_joint[i] else int(by_token[i]))
            self._question[lane, 1] = end
            self.tokens[lane, end : end + width] = self._joint
            self.length[lane] = end + width
            self._begin_answer(lane)

    def _begin_answer(self, lane: int) -> None:
        number = int(self.number[lane])
        self._asks[lane] = False
        self._answer_start[lane] = self.length[lane]
        self._limit[lane] = self.length[lane] + self._rules.max_answer
        self.temperature[lane] = self._rules.answer_temperature(number)
        self.seed[lane] = self._rules.draw_seed(number, of_answer=True)

    def _end(self, lane: int) -> Conversation:
        start, end = self._question[lane].tolist()
        tokens = self.tokens[lane, : self.length[lane]].copy()
        conversation = Conversation(
            number=int(self.number[lane]),
            tokens=tokens,
            question_start=start,
            question_end=end,
            answer_start=int(self._answer_start[lane]),
            temperature=float(self.temperature[lane]),
            is_ended=int(tokens[-1]) in self._rules.answer_ends,
        )
        self.number[lane] = IDLE
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
