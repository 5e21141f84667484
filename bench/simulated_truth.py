"""The world of a measured sweep: what its services reported of their steps while they served it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from bench.policies import ADAPTIVE, OFF, fixed_shape, shape_name
from bench.simulated_world import World, parse_shape, parse_world
from bench.sweep_document import STEP_FIELDS
from bench.target_link import StepSample
from paceline.errors import ConfigError
from paceline.types import TreeShape

RPC_MS = 1.0  # of the time from a step's end to its trees; the draft is busy with the rest
_LEAST_SAMPLES = 4  # of a kind, to count
_LEAST_PROMPT = 16  # tokens of a step whose time tells what prompts take
_PROMPT_ROWS = (64, 128, 256, 512)
_SKILLS = np.linspace(-3.0, 3.0, 61)
_ROUND_VARIANCE = 0.8  # of a round's accepted drafts
_SKILL_STD = 0.6  # around the mean, before any round of a prompt was seen

Points = Sequence[dict[str, Any]]


def calibrated_world(sweep: dict[str, Any]) -> World:
    """What the services measured when they warmed up, which is where a policy starts from. Raises ConfigError where
    they measured nothing."""
    if not sweep["calibration"]["step_ms"] or not sweep["calibration"]["propose_ms"]:
        raise ConfigError("the services of the sweep did not say what their steps and trees take; update them")
    return parse_world({"name": "warm-up", "rpc_ms": RPC_MS, "accepted": _accepted(sweep), **sweep["calibration"]})


def served_world(sweep: dict[str, Any]) -> World:
    """The same corrected by the steps of the sweep itself, those of undisturbed points where there are some.

    Steps without prompts are medians by rows, those with prompts one line through all; where no step was seen, the
    warm-up's times stand in, scaled as those that were. From a step's end to its trees: medians by tree and sessions.
    """
    points = [point for point in sweep["points"] if not point["is_disturbed"]] or sweep["points"]
    loop_ms = _gap_ms(point for point in points if point["policy"] == OFF)
    gap_ms = _gap_ms(point for point in points if point["policy"] not in (OFF, ADAPTIVE))
    data = {
        "name": "served",
        "step_ms": _steps(sweep, points),
        "propose_ms": _proposals(sweep, points, max(0.0, gap_ms - loop_ms)),
        "rpc_ms": RPC_MS,
        "loop_ms": loop_ms,
        "accepted": _accepted(sweep),
    }
    return parse_world(data)


def skills_of(sweep: dict[str, Any], world: World) -> list[float]:
    """Of each prompt: the likeliest by the drafts that the fixed trees accepted of it, by a normal approximation."""
    log_likelihood = np.tile(-0.5 * (_SKILLS / _SKILL_STD) ** 2, (len(sweep["requests"]["prompt_tokens"]), 1))
    for policy, drafts in sweep["requests"]["drafts"].items():
        if policy in (OFF, ADAPTIVE):
            continue
        shape = fixed_shape(policy)
        assert shape is not None
        chance = 1.0 / (1.0 + np.exp(-(world.odds(shape) + _SKILLS)))
        depth = min(shape.num_steps, shape.num_draft_tokens - 1)
        expected = np.cumprod(np.tile(chance, (depth, 1)), axis=0).sum(axis=0)  # drafts a round
        rounds, accepted = np.hsplit(np.array(drafts, float), 2)
        log_likelihood -= 0.5 * (accepted - rounds * expected) ** 2 / np.maximum(rounds * _ROUND_VARIANCE, 1.0)
    return [float(skill) for skill in _SKILLS[log_likelihood.argmax(axis=1)]]


def _accepted(sweep: dict[str, Any]) -> list[dict[str, Any]]:
    """Mean accepted lengths of the fixed trees over the whole sweep."""
    lengths = []
    for policy, counts in sweep["requests"]["drafts"].items():
        rounds, accepted = np.array(counts).sum(axis=0).tolist()
        if policy not in (OFF, ADAPTIVE) and rounds:
            lengths.append({"shape": _numbers(policy), "length": 1.0 + accepted / rounds})
    return lengths


def _steps(sweep: dict[str, Any], points: Points) -> list[tuple[float, float]]:
    times: dict[int, list[float]] = {}
    prompts: list[StepSample] = []
    for step in (step for point in points for step in _samples(point)):
        if step.prefill_tokens >= _LEAST_PROMPT:
            prompts.append(step)
        elif not step.prefill_tokens:
            times.setdefault(step.rows, []).append(step.step_ms)
    seen = {rows: statistics.median(its) for rows, its in times.items() if len(its) >= _LEAST_SAMPLES}
    warm = [(int(rows), float(ms)) for rows, ms in sweep["calibration"]["step_ms"]]
    if not seen:
        return list(warm)
    rows, ms = zip(*warm, strict=True)
    scale = statistics.median(its / float(np.interp(at, rows, ms)) for at, its in seen.items())
    if len(prompts) >= _LEAST_SAMPLES:
        slope, start = np.polyfit([step.rows for step in prompts], [step.step_ms for step in prompts], 1)
        unseen = [(at, float(start + slope * at)) for at in _PROMPT_ROWS if at > max(seen)]
    else:
        unseen = [(at, its * scale) for at, its in warm if at > max(seen)]
    return sorted([*seen.items(), *unseen])


def _proposals(sweep: dict[str, Any], points: Points, extra_ms: float) -> list[dict[str, Any]]:
    """extra_ms: from a step's end to its trees, what the target does not count as a wait."""
    seen: dict[TreeShape, dict[int, float]] = {}
    for policy in {point["policy"] for point in points} - {OFF, ADAPTIVE}:
        waits: dict[int, list[float]] = {}
        for step in (step for point in points if point["policy"] == policy for step in _samples(point)):
            if step.drafted == step.requests and not step.prefill_tokens and step.wait_ms > 0:
                waits.setdefault(step.drafted, []).append(max(0.0, step.wait_ms + extra_ms - RPC_MS))
        medians = {sessions: statistics.median(its) for sessions, its in waits.items() if len(its) >= _LEAST_SAMPLES}
        shape = fixed_shape(policy)
        if medians and shape is not None:
            seen[shape] = medians
    warm = {parse_shape(entry["shape"]): dict(entry["by_sessions"]) for entry in sweep["calibration"]["propose_ms"]}
    ratios = [
        ms / warm[shape][sessions]
        for shape, medians in seen.items()
        for sessions, ms in medians.items()
        if sessions in warm.get(shape, {})
    ]
    scale = statistics.median(ratios) if ratios else 1.0
    scaled = {shape: {count: ms * scale for count, ms in times.items()} for shape, times in warm.items()}
    both = {shape: scaled.get(shape, {}) | seen.get(shape, {}) for shape in {**scaled, **seen}}
    return [
        {"shape": _numbers(shape_name(shape)), "by_sessions": sorted(times.items())} for shape, times in both.items()
    ]


def _gap_ms(points: Iterable[dict[str, Any]]) -> float:
    """What a round of a request alone takes besides the step and the wait that the target reports; 0 if unknown."""
    gaps = []
    for point in points:
        steps = [step for step in _samples(point) if not step.prefill_tokens]
        is_alone = not point["is_open"] and [amount for _, amount in point["phases"]] == [1.0]
        if is_alone and steps and point["round_ms"] is not None:
            gaps.append(point["round_ms"] - statistics.fmean(step.step_ms + step.wait_ms for step in steps))
    return max(0.0, statistics.median(gaps)) if gaps else 0.0


def _samples(point: dict[str, Any]) -> Iterator[StepSample]:
    for values in point["steps"]:
        yield StepSample(**dict(zip(STEP_FIELDS, values, strict=True)))


def _numbers(policy: str) -> list[int]:
    return [int(part) for part in policy.split(",")]
