"""The way from asks to trees in a measured sweep: what the draft takes, and what goes with the sessions otherwise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench.policies import ADAPTIVE, OFF, fixed_shape
from bench.simulated_fit import fit_parts, rising
from bench.simulated_steps import LEAST_SAMPLES, Points, samples
from bench.simulated_world import MOST_ROWS, parse_proposals, parse_shape
from bench.target_link import StepSample
from paceline.types import TreeShape
from router.cost_tables import ProposeTable
from router.tree_costs import RPC_MS, SESSION_MS

# By the warm-up's times, of a message, of each session; by the warm-up's times while a step runs; and of each row of
# the prompts that came to the draft meanwhile.
_PRIOR = ((1.0, 1.0), (RPC_MS, RPC_MS), (SESSION_MS, SESSION_MS), (0.0, 0.5), (0.0, 0.01))
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
    beside: float  # share of their way in which a step ran
    prompt_rows: float  # of requests that are to ask for their first trees next
    ms: float


@dataclass(frozen=True, slots=True)
class _Parts:
    """Of ways to a draft and back."""

    scale: float  # of the warm-up's times
    rpc_ms: float
    rpc_session_ms: float
    slowed: float  # of a draft's time, while a step runs
    row_ms: float


def served_proposals(
    calibration: dict[str, Any], points: Points, extra_ms: float, mean_prompt: float
) -> dict[str, Any]:
    """Fields of a world: by tree and sessions the mean of what was awaited, or the median of what came while a step
    ran, for some of these trees were asked for earlier; and where none was seen the warm-up's times, scaled as those
    that were, with what messages take beside them.

    extra_ms: from a step's end to its trees, what a target that reports no turnaround does not count as a wait.
    """
    warm = parse_proposals(calibration["propose_ms"])
    seen = list(_seen(points, extra_ms, mean_prompt))
    parts = _parts(warm, seen)
    typical, spread = _typical(seen, parts)
    times: dict[TreeShape, dict[int, tuple[float, int]]] = {shape: dict(sizes) for shape, sizes in typical.items()}
    scale = _scale(warm, typical, parts.scale)
    for entry in calibration["propose_ms"]:
        known = times.setdefault(parse_shape(entry["shape"]), {})
        for sessions, ms in entry["by_sessions"]:
            known.setdefault(int(sessions), (ms * scale, 1))
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
        "slowed": parts.slowed,
        "row_ms": parts.row_ms,
        "spread": spread,
    }


def _parts(warm: ProposeTable, seen: Sequence[_Seen]) -> _Parts:
    """By a fit over all that was seen of the growths that the warm-up knows."""
    features, times_ms = [], []
    for one in seen:
        if one.shape in warm.growths:
            table = warm.of(one.shape).at_one(one.sessions)
            features.append((table, 1.0, float(one.sessions), one.beside * table, one.prompt_rows))
            times_ms.append(one.ms)
    weights = fit_parts(features, times_ms, prior=_PRIOR) if features else [mean for mean, _ in _PRIOR]
    scale, rpc_ms, rpc_session_ms, by_step, row_ms = weights
    return _Parts(scale, rpc_ms, rpc_session_ms, by_step / scale if scale else 0.0, row_ms)


def _typical(seen: Sequence[_Seen], parts: _Parts) -> tuple[dict[TreeShape, dict[int, tuple[float, int]]], float]:
    """What a draft took, without the parts, by tree and sessions, and of how many ways; and how far ways spread."""
    bare: dict[TreeShape, list[tuple[int, float, bool]]] = {}
    for one in seen:
        ms = one.ms - parts.rpc_ms - parts.rpc_session_ms * one.sessions - parts.row_ms * one.prompt_rows
        of_draft = max(0.0, ms) / (1.0 + parts.slowed * one.beside)
        bare.setdefault(one.shape, []).append((one.sessions, of_draft, one.beside < _AT_ONCE))
    times: dict[TreeShape, dict[int, tuple[float, int]]] = {}
    deviations: list[float] = []
    for shape, ways in bare.items():
        for its in _pooled(sorted(ways)):
            if len(its) < LEAST_SAMPLES:
                continue
            awaited = [ms for _, ms, is_awaited in its if is_awaited]
            typical = statistics.median(ms for _, ms, _ in its)
            if len(awaited) >= LEAST_SAMPLES:
                typical = _mean(awaited)
                deviations += [abs(math.log(max(ms, 0.1) / max(typical, 0.1))) for ms in awaited]
            sessions = round(statistics.fmean(sessions for sessions, _, _ in its))
            times.setdefault(shape, {})[sessions] = (typical, len(its))
    return times, _STD_OF_MEAN * statistics.fmean(deviations) if deviations else 0.0


def _scale(warm: ProposeTable, typical: dict[TreeShape, dict[int, tuple[float, int]]], default: float) -> float:
    """Of the warm-up's times, by what was typical: a mean is above what most ways take, where some take far longer."""
    taken = expected = 0.0
    for shape, sizes in typical.items():
        for sessions, (ms, count) in sizes.items() if shape in warm.growths else ():
            taken += count * ms
            expected += count * warm.of(shape).at_one(sessions)
    return taken / expected if expected else default


def _pooled(ways: Sequence[tuple[int, float, bool]]) -> Iterator[list[tuple[int, float, bool]]]:
    """In groups of about as many sessions; in their order."""
    group: list[tuple[int, float, bool]] = []
    for way in ways:
        if group and way[0] >= _POOLED * group[0][0]:
            yield group
            group = []
        group.append(way)
    yield group


def _rising(sizes: dict[int, tuple[float, int]]) -> list[tuple[int, float]]:
    """Sessions and times, which never fall."""
    known = sorted(sizes.items())
    all_ms = rising([ms for _, (ms, _) in known], [count for _, (_, count) in known])
    return [(sessions, ms) for (sessions, _), ms in zip(known, all_ms, strict=True)]


def _mean(times_ms: list[float]) -> float:
    """Times far above the others count as less."""
    most = _OUTLIER * statistics.median(times_ms)
    return statistics.fmean(min(ms, most) for ms in times_ms)


def _seen(points: Points, extra_ms: float, mean_prompt: float) -> Iterator[_Seen]:
    """Of the fixed policies."""
    for point in points:
        shape = None if point["policy"] in (OFF, ADAPTIVE) else fixed_shape(point["policy"])
        if shape is None:
            continue
        for step in samples(point):
            ms = _turnaround_ms(step, extra_ms)
            is_of_several_asks = 0.0 < step.wait_ms < _ONE_ASK * ms
            if ms > 0 and not is_of_several_asks:
                beside = 1.0 - min(1.0, step.wait_ms / ms)
                prompt_rows = mean_prompt * max(0, step.requests - step.drafted)
                sessions = step.drafted if step.rows < MOST_ROWS else step.requests  # trees are cut to fit
                yield _Seen(shape, sessions, beside, prompt_rows, ms)


def _turnaround_ms(step: StepSample, extra_ms: float) -> float:
    """Of a step's trees; the wait where nothing but trees was awaited, or ran; 0 where neither is known."""
    if step.turnaround_ms or not step.drafted:
        return step.turnaround_ms
    is_pure = step.drafted == step.requests and not step.prefill_tokens and step.wait_ms > 0
    return step.wait_ms + extra_ms if is_pure else 0.0
