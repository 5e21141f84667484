"""What a simulation takes for true: measured times, and how far trees are accepted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.simulated_requests import RandomRequests, Requests
from paceline.errors import ConfigError
from paceline.types import TreeShape
from router.acceptance_prior import prior_log_odds
from router.cost_tables import ProposeTable, StepTable


@dataclass(frozen=True, slots=True)
class World:
    """The services of one machine and one model pair. Times in milliseconds."""

    name: str
    steps: StepTable  # a target's step by rows
    proposals: ProposeTable  # a draft's time by growth and sessions
    rpc_ms: float  # both ways, and the threads that wake
    accepted: dict[TreeShape, float]  # mean accepted length of a round
    skill_std: float = 0.4  # of requests, in log-odds of each level
    context_ms: float = 0.0  # a step, for each 100,000 tokens of context
    request_ms: float = 0.0  # a step, for each request: the host's work
    loop_ms: float = 0.0  # between two steps, whatever they hold
    follow_ms: float = 0.0  # that a row which no ask carries to its draft takes from the target, on the same cores
    chunk_tokens: int = 512
    requests: Requests = field(default_factory=RandomRequests)
    _odds: dict[TreeShape, float] = field(default_factory=dict, compare=False, repr=False)  # as far as asked for

    def step_ms(self, rows: int, *, num_requests: int, context_tokens: int) -> float:
        """Of a step with prompts and trees of so many requests."""
        by_context = self.context_ms * context_tokens / 1e5
        return self.steps.at_one(rows) + by_context + self.request_ms * num_requests

    def odds(self, shape: TreeShape) -> float:
        """Log-odds that one more level is accepted, the same at each, which give the shape's accepted length.

        A shape that was not measured: as far from those of its form's prior as the nearest measured one.
        """
        if shape not in self._odds:
            self._odds[shape] = self._odds_of(shape)
        return self._odds[shape]

    def _odds_of(self, shape: TreeShape) -> float:
        if shape not in self.accepted:
            near = min(self.accepted, key=lambda known: _distance(known, shape))
            return self.odds(near) + float(prior_log_odds(shape, 1)[0] - prior_log_odds(near, 1)[0])
        depth = min(shape.num_steps, shape.num_draft_tokens - 1)
        drafts = self.accepted[shape] - 1.0
        low, high = 0.0, 1.0
        for _ in range(50):
            chance = (low + high) / 2
            low, high = (chance, high) if np.cumprod([chance] * depth).sum() < drafts else (low, chance)
        return float(np.log(low / (1.0 - low)))


def load_world(path: Path) -> World:
    """Raises ConfigError for a file that is missing or says something else."""
    try:
        return parse_world(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"--world {path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"--world {path} is no cost model; see bench/worlds/ for examples") from error


def parse_world(data: dict[str, Any]) -> World:
    """The form of bench/worlds/*.json."""
    accepted = {parse_shape(entry["shape"]): float(entry["length"]) for entry in data["accepted"]}
    return World(
        name=data["name"],
        steps=StepTable([(int(rows), float(ms)) for rows, ms in data["step_ms"]]),
        proposals=ProposeTable(
            [
                (parse_shape(entry["shape"]), int(sessions), float(ms))
                for entry in data["propose_ms"]
                for sessions, ms in entry["by_sessions"]
            ]
        ),
        rpc_ms=float(data["rpc_ms"]),
        accepted=accepted,
        skill_std=float(data.get("skill_std", 0.4)),
        context_ms=float(data.get("context_ms", 0.0)),
        request_ms=float(data.get("request_ms", 0.0)),
        loop_ms=float(data.get("loop_ms", 0.0)),
        follow_ms=float(data.get("follow_ms", 0.0)),
    )


def _distance(one: TreeShape, other: TreeShape) -> float:
    pairs = zip(_numbers(one), _numbers(other), strict=True)
    return sum(abs(float(np.log(a / b))) for a, b in pairs)


def _numbers(shape: TreeShape) -> tuple[int, int, int]:
    return shape.num_steps, shape.eagle_topk, shape.num_draft_tokens


def parse_shape(numbers: Sequence[int]) -> TreeShape:
    """Of steps, topk and nodes."""
    num_steps, eagle_topk, num_draft_tokens = numbers
    return TreeShape(num_steps, eagle_topk, num_draft_tokens)
