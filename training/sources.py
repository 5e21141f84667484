"""Where conversations begin: the target's own questions, or prompts of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from training.chat_seam import ChatSeam


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """What a sequence is given. asks: the target goes on with a question; else with the answer."""

    tokens: np.ndarray  # [n >= 1] int32
    asks: bool


class Source(Protocol):
    """Openings by number."""

    def opening(self, number: int) -> Opening | None:
        """None past the last one."""
        ...


class OwnQuestions:
    """The same opening without end: the bare template up to the user's turn."""

    def __init__(self, seam: ChatSeam) -> None:
        self._opening = Opening(np.array(seam.prefix, np.int32), asks=True)

    def opening(self, number: int) -> Opening | None:
        return self._opening


class GivenPrompts:
    """One answer a prompt."""

    def __init__(self, prompts: Sequence[Sequence[int]]) -> None:
        self._openings = [Opening(np.array(prompt, np.int32), asks=False) for prompt in prompts]

    def opening(self, number: int) -> Opening | None:
        return self._openings[number] if number < len(self._openings) else None
