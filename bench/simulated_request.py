"""SimRequest: one request of a simulation; Tally: what all of them came to."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bench.timed_run import LEAST_TOKENS
from paceline.step_table import Floats
from paceline.types import TreeShape
from router.acceptance_prior import chance_of


@dataclass(slots=True, eq=False)
class SimRequest:
    """skill: how much likelier than on average its drafts are accepted, in log-odds of each level."""

    number: int
    prompt_len: int
    output_len: int
    skill: float
    rng: np.random.Generator
    arrived_s: float
    committed: int = 0  # tokens of the prompt
    emitted: int = 0
    first_s: float = 0.0  # when the first token came
    shape: TreeShape | None = None  # of the ask that is open, or of the tree that came; None while it asks for none
    is_asking: bool = False
    has_tree: bool = False
    deadline_s: float = -1.0
    asked_s: float = 0.0
    answered_s: float = 0.0
    is_synced: bool = True  # no rows are on their way to its draft by themselves
    held: int = 0  # tokens that its draft has
    half: int = 0  # that its trees belong to, where rounds are split
    is_running: bool = False  # in a step under way
    pending: int = 0  # tokens of the prompt in steps under way
    last_step: int = 0

    @property
    def is_decoding(self) -> bool:
        return self.emitted > 0

    def accept(self, odds: Floats) -> int:
        """Accepted drafts of one round. odds: [levels] of its shape, on average."""
        failures = np.nonzero(self.rng.random(len(odds)) >= chance_of(odds + self.skill))[0]
        return int(failures[0]) if len(failures) else len(odds)


@dataclass(slots=True)
class Tally:
    """Times in milliseconds. accepted_tokens counts the extra token of each drafted round, too."""

    began_s: float = 0.0  # when the load's clock started
    tokens: list[tuple[float, int]] = field(default_factory=list)  # when, how many
    tpot_ms: list[float] = field(default_factory=list)
    ttft_ms: list[float] = field(default_factory=list)
    drafted_rounds: int = 0
    accepted_tokens: int = 0
    late_rounds: int = 0

    def rate(self, start_s: float, stop_s: float) -> float:
        """Tokens a second between these times of the load's clock."""
        start_s, stop_s = self.began_s + start_s, self.began_s + stop_s
        return sum(count for at_s, count in self.tokens if start_s <= at_s < stop_s) / (stop_s - start_s)

    def began(self, request: SimRequest) -> None:
        """Its first token came."""
        self.ttft_ms.append((request.first_s - request.arrived_s) * 1e3)

    def left(self, request: SimRequest, now_s: float) -> None:
        """It has all its tokens, or was cut off."""
        if request.emitted > LEAST_TOKENS:
            self.tpot_ms.append((now_s - request.first_s) * 1e3 / (request.emitted - 1))
