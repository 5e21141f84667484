"""The way from asks to trees in a measured sweep: what the draft takes, and what goes with the sessions otherwise."""

from __future__ import annotations

import statistics
from typing import Any

from bench.policies import ADAPTIVE, OFF, fixed_shape
from bench.simulated_fit import fit_parts
from bench.simulated_steps import LEAST_SAMPLES, Points, samples
from bench.simulated_world import parse_proposals, parse_shape
from bench.target_link import StepSample
from paceline.types import TreeShape
from router.tree_costs import RPC_MS, SESSION_MS

_PRIOR = (
    (1.0, 1.0),
    (RPC_MS, RPC_MS),
    (SESSION_MS, SESSION_MS),
)  # by the warm-up's times, of a message, of each session


def served_proposals(calibration: dict[str, Any], points: Points, extra_ms: float) -> dict[str, Any]:
    """Fields of a world: medians by tree and sessions, and where none was seen the warm-up's times, scaled as those
    that were, with what messages take beside them.

    extra_ms: from a step's end to its trees, what a target that reports no turnaround does not count as a wait.
    """
    warm = parse_proposals(calibration["propose_ms"])
    seen = _seen(points, extra_ms)
    known = [
        ((warm.of(shape).at_one(sessions), 1.0, float(sessions)), ms)
        for shape, medians in seen.items()
        if shape in warm.growths
        for sessions, ms in medians.items()
    ]
    scale, rpc_ms, rpc_session_ms = (mean for mean, _ in _PRIOR)
    if known:
        features, times_ms = zip(*known, strict=True)
        scale, rpc_ms, rpc_session_ms = fit_parts(features, times_ms, prior=_PRIOR)
    times: dict[TreeShape, dict[int, float]] = {}
    for entry in calibration["propose_ms"]:
        times[parse_shape(entry["shape"])] = {int(sessions): ms * scale for sessions, ms in entry["by_sessions"]}
    for shape, medians in seen.items():
        measured = {sessions: max(0.0, ms - rpc_ms - rpc_session_ms * sessions) for sessions, ms in medians.items()}
        times[shape] = times.get(shape, {}) | measured
    return {
        "propose_ms": [
            {
                "shape": [shape.num_steps, shape.eagle_topk, shape.num_draft_tokens],
                "by_sessions": sorted(by_sessions.items()),
            }
            for shape, by_sessions in times.items()
        ],
        "rpc_ms": rpc_ms,
        "rpc_session_ms": rpc_session_ms,
    }


def _seen(points: Points, extra_ms: float) -> dict[TreeShape, dict[int, float]]:
    """Medians of the fixed policies, by shape and sessions."""
    seen: dict[TreeShape, dict[int, float]] = {}
    for policy in {point["policy"]: None for point in points if point["policy"] not in (OFF, ADAPTIVE)}:
        shape = fixed_shape(policy)
        assert shape is not None
        taken: dict[int, list[float]] = {}
        for step in (step for point in points if point["policy"] == policy for step in samples(point)):
            if (ms := _turnaround_ms(step, extra_ms)) > 0:
                taken.setdefault(step.drafted, []).append(ms)
        medians = {sessions: statistics.median(its) for sessions, its in taken.items() if len(its) >= LEAST_SAMPLES}
        if medians:
            seen[shape] = medians
    return seen


def _turnaround_ms(step: StepSample, extra_ms: float) -> float:
    """Of a step's trees; the wait where nothing but trees was awaited, or ran; 0 where neither is known."""
    if step.turnaround_ms or not step.drafted:
        return step.turnaround_ms
    is_pure = step.drafted == step.requests and not step.prefill_tokens and step.wait_ms > 0
    return step.wait_ms + extra_ms if is_pure else 0.0
