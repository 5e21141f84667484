"""The way from asks to trees in a measured sweep: what the draft takes, and what goes with the sessions otherwise."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bench.policies import ADAPTIVE, OFF, fixed_shape
from bench.simulated_fit import fit_parts, rising
from bench.simulated_steps import LEAST_SAMPLES, Points, samples
from bench.simulated_world import MOST_ROWS, growth_of, parse_proposals
from bench.target_link import StepSample
from paceline.types import TreeShape
from router.cost_tables import ProposeTable
from router.tree_costs import RPC_MS, SESSION_MS

# By the warm-up's times, of a message, of each session; by the warm-up's times while a step runs; and of each row of
# the prompts that come to the draft meanwhile. The first is nearly known: what grows with the sessions is either that
# or their messages, and the two are told apart by little else.
_PRIOR = ((1.0, 0.2), (RPC_MS, RPC_MS), (SESSION_MS, SESSION_MS), (0.0, 0.5), (0.0, 0.01))
_ONE_ASK = 0.7  # of the longest way of a step's trees, that its wait is at least where all were asked for at once
_AT_ONCE = 0.3  # share of a way in which a step ran, below which its trees were what the target waited for
_POOLED = 1.2  # sessions that differ by less are one size
_OUTLIER = 2.5  # medians
_STD_OF_MEAN = 1.25  # a normal distribution's, over its mean deviation


@dataclass(frozen=True, slots=True)
class _Seen:
    """The trees of one step."""

    shape: TreeShape
    sessions: int
    warm_ms: float | None  # by the warm-up; None where that knows no growth for the shape
    beside: float  # share of their way in which a step ran
    prompt_rows: int  # of the step: about as many come to the draft in each round
    ms: float


@dataclass(frozen=True, slots=True)
class _Parts:
    """Of ways to a draft and back."""

    scale: float  # of the warm-up's times
    rpc_ms: float
    rpc_session_ms: float
    by_step: float  # of the warm-up's times, while a step runs
    row_ms: float

    def besides(self, seen: _Seen) -> float:
        """What goes with a way but the draft's own work on its trees."""
        by_step_ms = self.by_step * seen.beside * (seen.warm_ms or 0.0)
        return self.rpc_ms + self.rpc_session_ms * seen.sessions + self.row_ms * seen.prompt_rows + by_step_ms


class _Way(NamedTuple):
    """One way to a draft and back."""

    sessions: int
    draft_ms: float  # for the trees
    rows_ms: float  # for rows of prompts
    is_awaited: bool


_Sizes = dict[int, tuple[float, int]]  # by sessions: a time, and of how many ways


def served_proposals(calibration: dict[str, Any], points: Points, extra_ms: float) -> dict[str, Any]:
    """Fields of a world: by tree and sessions the mean of what was awaited, or the median of what came while a step
    ran, for some of these trees were asked for earlier; and where none was seen the warm-up's times, scaled as those
    that were, with what messages take beside them.

    extra_ms: from a step's end to its trees, what a target that reports no turnaround does not count as a wait.
    """
    warm = parse_proposals(calibration["propose_ms"])
    growths = tuple(warm.growths)
    seen = list(_seen(points, extra_ms, warm))
    parts = _parts(seen)
    times, spread = _typical(seen, parts)
    scale = _scale(warm, times, parts.scale)
    for shape in dict.fromkeys((*times, *growths)):
        growth, sizes = growth_of(shape, growths), times.setdefault(shape, {})
        for sessions in map(int, warm.of(growth).rows) if growth in growths else ():
            sizes.setdefault(sessions, (scale * warm.of(growth).at_one(sessions), 1))
    return {
        "propose_ms": [
            {
                "shape": [shape.num_steps, shape.eagle_topk, shape.num_draft_tokens],
                "by_sessions": _rising(sizes),
            }
            for shape, sizes in times.items()
        ],
        "rpc_ms": parts.rpc_ms,
        "rpc_session_ms": parts.rpc_session_ms,
        "slowed": parts.by_step / scale if scale else 0.0,
        "row_ms": parts.row_ms,
        "spread": spread,
    }


def _parts(seen: Sequence[_Seen]) -> _Parts:
    """By a fit over all that was seen of the growths that the warm-up knows."""
    features, times_ms = [], []
    for one in seen:
        if one.warm_ms is not None:
            of_draft = one.warm_ms, 1.0, float(one.sessions), one.beside * one.warm_ms
            features.append((*of_draft, float(one.prompt_rows)))
            times_ms.append(one.ms)
    weights = fit_parts(features, times_ms, prior=_PRIOR) if features else [mean for mean, _ in _PRIOR]
    return _Parts(*weights)


def _typical(seen: Sequence[_Seen], parts: _Parts) -> tuple[dict[TreeShape, _Sizes], float]:
    """What a draft took, without the parts, by tree and sessions; and how far that spreads, with its prompts' rows."""
    ways: dict[TreeShape, list[_Way]] = {}
    for one in seen:
        draft_ms = max(0.0, one.ms - parts.besides(one))
        way = _Way(one.sessions, draft_ms, parts.row_ms * one.prompt_rows, one.beside < _AT_ONCE)
        ways.setdefault(one.shape, []).append(way)
    times: dict[TreeShape, _Sizes] = {}
    deviation_ms = taken_ms = 0.0
    for shape, its in ways.items():
        for group in _pooled(sorted(its)):
            if len(group) < LEAST_SAMPLES:
                continue
            awaited = [way for way in group if way.is_awaited]
            typical_ms = statistics.median(way.draft_ms for way in group)
            if len(awaited) >= LEAST_SAMPLES:
                typical_ms = _mean([way.draft_ms for way in awaited])
                deviation_ms += sum(abs(way.draft_ms - typical_ms) for way in awaited)
                taken_ms += sum(typical_ms + way.rows_ms for way in awaited)
            sessions = round(statistics.fmean(way.sessions for way in group))
            times.setdefault(shape, {})[sessions] = (typical_ms, len(group))
    return times, _STD_OF_MEAN * deviation_ms / taken_ms if taken_ms else 0.0


def _scale(warm: ProposeTable, typical: dict[TreeShape, _Sizes], default: float) -> float:
    """Of the warm-up's times, by what was typical: a mean is above what most ways take, where some take far longer."""
    taken = expected = 0.0
    for shape, sizes in typical.items():
        growth = growth_of(shape, tuple(warm.growths))
        for sessions, (ms, count) in sizes.items() if growth in warm.growths else ():
            taken += count * ms
            expected += count * warm.of(growth).at_one(sessions)
    return taken / expected if expected else default


def _pooled(ways: Sequence[_Way]) -> Iterator[list[_Way]]:
    """In groups of about as many sessions; in their order."""
    group: list[_Way] = []
    for way in ways:
        if group and way.sessions >= _POOLED * group[0].sessions:
            yield group
            group = []
        group.append(way)
    yield group


def _rising(sizes: _Sizes) -> list[tuple[int, float]]:
    """Sessions and times, which never fall."""
    known = sorted(sizes.items())
    all_ms = rising([ms for _, (ms, _) in known], [count for _, (_, count) in known])
    return [(sessions, ms) for (sessions, _), ms in zip(known, all_ms, strict=True)]


def _mean(times_ms: list[float]) -> float:
    """Times far above the others count as less."""
    most = _OUTLIER * statistics.median(times_ms)
    return statistics.fmean(min(ms, most) for ms in times_ms)


def _seen(points: Points, extra_ms: float, warm: ProposeTable) -> Iterator[_Seen]:
    """Of the fixed policies."""
    growths = tuple(warm.growths)
    for point in points:
        shape = None if point["policy"] in (OFF, ADAPTIVE) else fixed_shape(point["policy"])
        if shape is None:
            continue
        growth = growth_of(shape, growths)
        for step in samples(point):
            ms = _turnaround_ms(step, extra_ms)
            is_of_several_asks = 0.0 < step.wait_ms < _ONE_ASK * ms
            if ms > 0 and not is_of_several_asks:
                beside = 1.0 - min(1.0, step.wait_ms / ms) if step.turnaround_ms else 0.0
                sessions = step.drafted if step.rows < MOST_ROWS else step.requests  # trees are cut to fit
                warm_ms = warm.of(growth).at_one(sessions) if growth in growths else None
                yield _Seen(shape, sessions, warm_ms, beside, step.prefill_tokens, ms)


def _turnaround_ms(step: StepSample, extra_ms: float) -> float:
    """Of a step's trees; the wait where nothing but trees was awaited, or ran; 0 where neither is known."""
    if step.turnaround_ms or not step.drafted:
        return step.turnaround_ms
    is_pure = step.drafted == step.requests and not step.prefill_tokens and step.wait_ms > 0
    return step.wait_ms + extra_ms if is_pure else 0.0
