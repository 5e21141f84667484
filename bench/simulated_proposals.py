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
    known = []
    for one in seen:
        if one.shape in warm.growths:
            table = warm.of(one.shape).at_one(one.sessions)
            known.append(((table, 1.0, float(one.sessions), one.beside * table, one.prompt_rows), one.ms))
    scale, rpc_ms, rpc_session_ms, by_step, row_ms = (mean for mean, _ in _PRIOR)
    if known:
        features, times_ms = zip(*known, strict=True)
        scale, rpc_ms, rpc_session_ms, by_step, row_ms = fit_parts(features, times_ms, prior=_PRIOR)
    slowed = by_step / scale if scale else 0.0
    bare: dict[TreeShape, list[tuple[int, float, bool]]] = {}
    for one in seen:
        ms = one.ms - rpc_ms - rpc_session_ms * one.sessions - row_ms * one.prompt_rows
        of_draft = max(0.0, ms) / (1.0 + slowed * one.beside)
        bare.setdefault(one.shape, []).append((one.sessions, of_draft, one.beside < _AT_ONCE))
    times: dict[TreeShape, list[tuple[float, float, int]]] = {}
    deviations: list[float] = []
    for entry in calibration["propose_ms"]:
        times[parse_shape(entry["shape"])] = [(float(size), ms * scale, 1) for size, ms in entry["by_sessions"]]
    for shape, ways in bare.items():
        for its in _pooled(sorted(ways)):
            if len(its) < LEAST_SAMPLES:
                continue
            awaited = [ms for _, ms, is_awaited in its if is_awaited]
            typical = statistics.median(ms for _, ms, _ in its)
            if len(awaited) >= LEAST_SAMPLES:
                typical = _mean(awaited)
                deviations += [abs(math.log(max(ms, 0.1) / max(typical, 0.1))) for ms in awaited]
            size = statistics.fmean(sessions for sessions, _, _ in its)
            times.setdefault(shape, []).append((size, typical, len(its)))
    return {
        "propose_ms": [
            {
                "shape": [shape.num_steps, shape.eagle_topk, shape.num_draft_tokens],
                "by_sessions": _rising(sizes),
            }
            for shape, sizes in times.items()
        ],
        "rpc_ms": rpc_ms,
        "rpc_session_ms": rpc_session_ms,
        "slowed": slowed,
        "row_ms": row_ms,
        "spread": _STD_OF_MEAN * statistics.fmean(deviations) if deviations else 0.0,
    }


def _pooled(ways: Sequence[tuple[int, float, bool]]) -> Iterator[list[tuple[int, float, bool]]]:
    """In groups of about as many sessions; in their order."""
    group: list[tuple[int, float, bool]] = []
    for way in ways:
        if group and way[0] >= _POOLED * group[0][0]:
            yield group
            group = []
        group.append(way)
    yield group


def _rising(sizes: Sequence[tuple[float, float, int]]) -> list[tuple[float, float]]:
    """Sessions and times, which never fall, of sessions, times and how often each was seen."""
    all_sessions, all_ms, counts = zip(*sorted(sizes), strict=True)
    return list(zip(all_sessions, rising(all_ms, counts), strict=True))


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
