"""The world of a measured sweep: what its services reported of their steps while they served it."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable
from typing import Any

import numpy as np

from bench.policies import ADAPTIVE, OFF, fixed_shape
from bench.simulated_asker import FLUSH_ROWS
from bench.simulated_proposals import served_proposals
from bench.simulated_steps import LEAST_SAMPLES, samples, served_steps
from bench.simulated_world import World, parse_proposals, parse_world
from paceline.errors import ConfigError
from paceline.step_table import StepTable
from router.acceptance_prior import drafts_of
from router.tree_costs import RPC_MS
from target_service.deadline import longest_wait_ms

_SKILLS = np.linspace(-3.0, 3.0, 61)
_ROUND_VARIANCE = 0.8  # of a round's accepted drafts
_SKILL_STD = 0.6  # around the mean, before any round of a prompt was seen


def calibrated_world(sweep: dict[str, Any]) -> World:
    """What the services measured when they warmed up, which is where a policy starts from. Raises ConfigError where
    they measured nothing."""
    return parse_world({"name": "warm-up", "rpc_ms": RPC_MS, "accepted": _accepted(sweep), **_calibration(sweep)})


def served_world(sweep: dict[str, Any]) -> World:
    """The same corrected by the steps of the sweep itself, those of undisturbed points where there are some. Raises
    ConfigError."""
    calibration = _calibration(sweep)
    points = [point for point in sweep["points"] if not point["is_disturbed"]] or sweep["points"]
    loop_ms = _gap_ms(point for point in points if point["policy"] == OFF)
    gap_ms = _gap_ms(point for point in points if point["policy"] not in (OFF, ADAPTIVE))
    proposals = served_proposals(calibration, points, max(0.0, gap_ms - loop_ms))
    steps = served_steps(calibration, points, parse_proposals(proposals["propose_ms"]))
    data = {
        **calibration,
        "name": "served",
        **steps,
        "warm_step_ms": calibration["step_ms"],
        "arrival_ms": _arrival_ms(sweep, points, StepTable(steps["step_ms"])),
        **proposals,
        "loop_ms": loop_ms,
        "accepted": _accepted(sweep),
    }
    world = parse_world(data)
    return dataclasses.replace(world, send_ms=_send_ms(points, world))


def skills_of(sweep: dict[str, Any], world: World) -> list[float]:
    """Of each prompt: the likeliest by the drafts that the fixed trees accepted of it, by a normal approximation."""
    log_likelihood = np.tile(-0.5 * (_SKILLS / _SKILL_STD) ** 2, (len(sweep["requests"]["prompt_tokens"]), 1))
    for policy, drafts in sweep["requests"]["drafts"].items():
        if policy in (OFF, ADAPTIVE):
            continue
        shape = fixed_shape(policy)
        assert shape is not None
        expected = drafts_of(world.odds(shape) + _SKILLS[:, None])  # drafts a round
        rounds, accepted = np.hsplit(np.array(drafts, float), 2)
        log_likelihood -= 0.5 * (accepted - rounds * expected) ** 2 / np.maximum(rounds * _ROUND_VARIANCE, 1.0)
    return [float(skill) for skill in _SKILLS[log_likelihood.argmax(axis=1)]]


def _arrival_ms(sweep: dict[str, Any], points: Iterable[dict[str, Any]], steps: StepTable) -> float:
    """What a request that is alone waits for its first token more than its prompt's step takes; 0 if unknown."""
    prompt_ms = steps.at_one(_mean_prompt(sweep))
    firsts = [point["ttft_ms"]["p50"] for point in points if _is_alone(point) and point["policy"] == OFF]
    waits = [first_ms - prompt_ms for first_ms in firsts if first_ms is not None]  # in a short run none may come
    return max(0.0, statistics.median(waits)) if waits else 0.0


def _send_ms(points: Iterable[dict[str, Any]], world: World) -> float:
    """Each row's part of what a wait for trees of which none came in time took past their deadline: the target had rows
    to send meanwhile. 0 where too few such waits were seen."""
    past: list[float] = []
    for point in points:
        shape = None if point["policy"] in (OFF, ADAPTIVE) else fixed_shape(point["policy"])
        for step in samples(point):
            if shape in world.accepted and step.requests > 1 and step.wait_ms and not step.drafted:
                plain_ms = world.device_ms(step.requests, requests=step.requests)
                plain_ms += world.host_ms(0, watched=step.requests)
                deadline_ms = longest_wait_ms(world.accepted[shape], plain_ms)
                past.append(max(0.0, step.wait_ms - deadline_ms) / (step.requests * FLUSH_ROWS / 2))
    return statistics.fmean(past) if len(past) >= LEAST_SAMPLES else 0.0


def _is_alone(point: dict[str, Any]) -> bool:
    """One request at a time was served."""
    return not point["is_open"] and [amount for _, amount in point["phases"]] == [1.0]


def _mean_prompt(sweep: dict[str, Any]) -> float:
    known = [tokens for tokens in sweep["requests"]["prompt_tokens"] if tokens is not None]
    return statistics.fmean(known) if known else 0.0


def _calibration(sweep: dict[str, Any]) -> dict[str, Any]:
    calibration: dict[str, Any] = sweep["calibration"]
    if not calibration["step_ms"] or not calibration["propose_ms"]:
        raise ConfigError("the services of the sweep did not say what their steps and trees take; update them")
    return calibration


def _accepted(sweep: dict[str, Any]) -> list[dict[str, Any]]:
    """Mean accepted lengths of the fixed trees over the whole sweep."""
    lengths = []
    for policy, counts in sweep["requests"]["drafts"].items():
        rounds, accepted = np.array(counts).sum(axis=0).tolist()
        if policy not in (OFF, ADAPTIVE) and rounds:
            lengths.append({"shape": _numbers(policy), "length": 1.0 + accepted / rounds})
    return lengths


def _gap_ms(points: Iterable[dict[str, Any]]) -> float:
    """What a round of a request alone takes besides the step and the wait that the target reports; 0 if unknown."""
    gaps = []
    for point in points:
        steps = [step for step in samples(point) if not step.prefill_tokens]
        if _is_alone(point) and steps and point["round_ms"] is not None:
            gaps.append(point["round_ms"] - statistics.fmean(step.step_ms + step.wait_ms for step in steps))
    return max(0.0, statistics.median(gaps)) if gaps else 0.0


def _numbers(policy: str) -> list[int]:
    return [int(part) for part in policy.split(",")]
