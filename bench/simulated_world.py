"""What a simulation takes for true: measured times, and how far trees are accepted."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.simulated_requests import RandomRequests, Requests
from paceline.errors import ConfigError
from paceline.step_table import Floats, StepTable
from paceline.types import TreeShape
from router.acceptance_prior import drafts_of, prior_log_odds
from router.cost_tables import ProposeTable, covers

_MOST_SHIFT = 8.0  # of log-odds
_OPTIONAL = (
    "skill_std",
    "context_ms",
    "rpc_session_ms",
    "request_ms",
    "several_ms",
    "arrival_ms",
    "trees_ms",
    "tree_ms",
    "watch_ms",
    "beside",
    "beside_rows",
    "prompt_ms",
    "loop_ms",
    "follow_ms",
    "send_ms",
    "row_ms",
    "slowed",
    "spread",
)


MOST_ROWS = 2048  # of a step


@dataclass(frozen=True, slots=True)
class World:
    """The services of one machine and one model pair. Times in milliseconds."""

    name: str
    steps: StepTable  # a target's step by rows
    proposals: ProposeTable  # a draft's time by growth and sessions, its host's part included
    rpc_ms: float  # both ways between target and draft, and the threads that wake
    accepted: dict[TreeShape, float]  # mean accepted length of a round
    skill_std: float = 0.4  # of requests, in log-odds of each level
    context_ms: float = 0.0  # a step, for each 100,000 tokens of context
    arrival_ms: float = 0.0  # from a request's last token to the next request at a target: client, router, and back
    request_ms: float = 0.0  # of a step, each request
    several_ms: float = 0.0  # the same for those past the first together
    # What is left to the hosts, between the kernels: of the way to a draft and back, each session (the draft's own host
    # is part of its time); of a target's plan, commit and ask, where no other step runs meanwhile, and of each tree.
    rpc_session_ms: float = 0.0
    trees_ms: float = 0.0
    tree_ms: float = 0.0
    watch_ms: float = 0.0  # of a step without trees, each request that a draft follows: rows leave, and are confirmed
    prompt_ms: float = 0.0  # a step, for each prompt token: what it takes more than another row
    beside: float = 0.0  # of a draft's time, what it takes from a step that runs meanwhile
    beside_rows: float = 0.0  # the same for 1,000 rows of the step: a GPU that is at work on many has none to spare
    slowed: float = 0.0  # of a draft's time, what a step that runs meanwhile adds to it
    spread: float = 0.0  # of a draft's times around their mean: a standard deviation of their logarithm
    # A target may verify one half's trees while the other half's are drafted, and launch a plain step behind another.
    overlaps: bool = False
    shares_host: bool = False  # a draft runs on the target's host
    loop_ms: float = 0.0  # between two steps, whatever they hold
    follow_ms: float = 0.0  # that a row which no ask carries to its draft takes from the target, on the same cores
    send_ms: float = 0.0  # of a target, for a row that goes along with an ask more than the round before left
    row_ms: float = 0.0  # of a draft, for a row more than a round has: its prompt's, or of rounds without an ask
    chunk_tokens: int = 512  # of prompts in a step
    pace: float = 1.0  # of the machine: what everything takes, over these times
    warm_steps: StepTable | None = None  # as a target measured them when it warmed up; None: as they are
    max_rows: int = MOST_ROWS  # of a step; trees are cut to fit
    requests: Requests = field(default_factory=RandomRequests)
    _odds: dict[TreeShape, Floats] = field(default_factory=dict, compare=False, repr=False)  # as far as asked for

    def device_ms(self, rows: int, *, requests: int = 1, prompt_tokens: int = 0, context_tokens: int = 0) -> float:
        """Of a step, without the host's part. Prompt tokens are rows, too."""
        by_requests = self.request_ms * requests + self.several_ms * (requests > 1)
        by_context = self.context_ms * context_tokens / 1e5
        return self.pace * (self.steps.at_one(rows) + by_requests + self.prompt_ms * prompt_tokens + by_context)

    def host_ms(self, trees: int, *, watched: int = 0, is_alone: bool = True) -> float:
        """Between two steps. watched: requests that drafts follow, where no tree is there. is_alone: no other step was
        under way at the end of this one."""
        if trees:
            return self.pace * (self.trees_ms + self.tree_ms * trees)
        return self.pace * (self.watch_ms * watched + (self.trees_ms if self.overlaps and is_alone else 0.0))

    def share_taken(self, rows: int) -> float:
        """Of a draft's time, what a step of so many rows loses beside it."""
        return self.beside + self.beside_rows * rows / 1e3

    def way_ms(self, sessions: int) -> float:
        """To a draft, or back."""
        return (self.rpc_ms + self.rpc_session_ms * sessions) / 2

    def draft_ms(self, counts: Mapping[TreeShape, int]) -> float:
        """Of a draft with one batch of asks, counted by shape: growths run one after the other."""
        sessions: Counter[TreeShape] = Counter()
        for shape, count in counts.items():
            sessions[growth_of(shape, tuple(self.proposals.growths))] += count
        return self.pace * sum(self.proposals.of(growth).at_one(count) for growth, count in sessions.items())

    def turnaround_ms(self, counts: Mapping[TreeShape, int]) -> float:
        """From a batch of asks to its trees."""
        return 2 * self.way_ms(sum(counts.values())) + self.draft_ms(counts)

    def odds(self, shape: TreeShape) -> Floats:
        """[levels]: log-odds that one more level is accepted, which give the shape's accepted length. Levels differ as
        those of its form's prior do.

        A shape that was not measured: as far from its form's prior as the nearest measured one is, a chain where it is
        one.
        """
        if shape not in self._odds:
            self._odds[shape] = _prior(shape) + self._shift_of(shape)
        return self._odds[shape]

    def _shift_of(self, shape: TreeShape) -> float:
        """From its form's prior."""
        if shape not in self.accepted:
            near = min(self.accepted, key=lambda known: (_is_chain(known) != _is_chain(shape), _distance(known, shape)))
            return self._shift_of(near)
        prior, drafts = _prior(shape), self.accepted[shape] - 1.0
        low, high = -_MOST_SHIFT, _MOST_SHIFT
        for _ in range(50):
            shift = (low + high) / 2
            low, high = (shift, high) if drafts_of(prior + shift) < drafts else (low, shift)
        return low


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
    further: dict[str, Any] = {name: float(data[name]) for name in _OPTIONAL if name in data}
    if "warm_step_ms" in data:
        further["warm_steps"] = parse_steps(data["warm_step_ms"])
    return World(
        name=data["name"],
        steps=parse_steps(data["step_ms"]),
        proposals=parse_proposals(data["propose_ms"]),
        rpc_ms=float(data["rpc_ms"]),
        accepted=accepted,
        overlaps=bool(data.get("overlaps", False)),
        shares_host=bool(data.get("shares_host", False)),
        **further,
    )


def parse_steps(times: Sequence[Sequence[float]]) -> StepTable:
    """Of rows and times."""
    return StepTable([(float(rows), float(ms)) for rows, ms in times])


def parse_proposals(entries: Sequence[dict[str, Any]]) -> ProposeTable:
    """Of shapes, and times by sessions."""
    times = [
        (parse_shape(entry["shape"]), int(sessions), float(ms))
        for entry in entries
        for sessions, ms in entry["by_sessions"]
    ]
    return ProposeTable(times)


def _prior(shape: TreeShape) -> Floats:
    return prior_log_odds(shape, _depth(shape))


def _is_chain(shape: TreeShape) -> bool:
    return shape.eagle_topk == 1


def _depth(shape: TreeShape) -> int:
    return min(shape.num_steps, shape.num_draft_tokens - 1)


def _distance(one: TreeShape, other: TreeShape) -> float:
    pairs = zip(_numbers(one), _numbers(other), strict=True)
    return sum(abs(float(np.log(a / b))) for a, b in pairs)


def _numbers(shape: TreeShape) -> tuple[int, int, int]:
    return shape.num_steps, shape.eagle_topk, shape.num_draft_tokens


def parse_shape(numbers: Sequence[int]) -> TreeShape:
    """Of steps, topk and nodes."""
    num_steps, eagle_topk, num_draft_tokens = numbers
    return TreeShape(num_steps, eagle_topk, num_draft_tokens)


@functools.cache
def growth_of(shape: TreeShape, growths: tuple[TreeShape, ...]) -> TreeShape:
    """The smallest growth that covers the shape; the shape itself where there is none."""
    fitting = [growth for growth in growths if covers(growth, shape)]
    return min(fitting, key=lambda fit: (fit.num_steps, fit.eagle_topk, fit.num_draft_tokens), default=shape)
