"""A target's step times in a measured sweep: by rows, and what its requests, their trees and a draft beside it add."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.policies import ADAPTIVE, OFF, fixed_shape
from bench.simulated_fit import fit_parts
from bench.simulated_world import parse_proposals
from bench.sweep_document import STEP_FIELDS
from bench.target_link import StepSample
from paceline.step_table import StepTable
from router.cost_tables import ProposeTable
from router.step_costs import TREE_MS

LEAST_SAMPLES = 4  # of a kind, to count

_PROMPT_ROWS = 512  # of a step that is full of prompts
_STEADY = 0.85  # share of the requests in flight that are past their prompt, at least
_FEW = 0.2  # share of the rounds
_LEAST_AWAY = 0.25  # share of the requests that a step leaves out for their trees; fewer came or went
# By the warm-up's times, for a step with trees, each request, each tree, each ms of a draft's work beside it, the same
# for 1,000 rows, each request that is followed and has no tree, each row of a prompt that a draft gets, and each prompt
# token more than another row: where the warm-up knows rows as many as a prompt's.
_PRIOR = ((1.0, 0.5), (0.0, 0.5), (0.0, 0.02), (TREE_MS, TREE_MS), (0.0, 1.0), (0.0, 1.0), (0.0, 0.02), (0.0, 0.01))
_PROMPT_PRIOR, _NO_PROMPT_PRIOR = (0.0, 0.02), (0.0, 1e-6)

Points = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Seen:
    """features: those of _PRIOR, and prompt tokens."""

    step: StepSample
    features: tuple[float, ...]
    beside_ms: float


def samples(point: dict[str, Any]) -> Iterator[StepSample]:
    """The steps of a sweep's point that were sampled."""
    for values in point["steps"]:
        yield StepSample(**dict(zip(STEP_FIELDS, values, strict=False)))


def served_steps(calibration: dict[str, Any], points: Points) -> dict[str, Any]:
    """Fields of a world.

    What grows with requests, trees, prompts and a draft's work is a fit over all steps. Of the rest, those without
    prompts and beside no draft are medians by rows; else the warm-up's times stand in, scaled as those that were seen,
    and past them one line through the steps of more rows.
    """
    warm = [(int(rows), float(ms)) for rows, ms in calibration["step_ms"]]
    seen = list(_seen(calibration, points))
    if not seen:
        return {"step_ms": warm}
    prior = (*_PRIOR, _PROMPT_PRIOR if warm[-1][0] >= _PROMPT_ROWS else _NO_PROMPT_PRIOR)
    scale, *further = fit_parts([one.features for one in seen], [one.step.step_ms for one in seen], prior=prior)
    times: dict[int, list[float]] = {}
    bare = [(one, one.step.step_ms - float(np.dot(further, one.features[1:]))) for one in seen]
    for one, ms in bare:
        if not one.step.prefill_tokens and not one.beside_ms:
            times.setdefault(one.step.rows, []).append(ms)
    table = {rows: statistics.median(its) for rows, its in times.items() if len(its) >= LEAST_SAMPLES}
    most = max(table, default=0)
    table |= {rows: ms * scale for rows, ms in warm if rows > most}
    past = [(one.step.rows, ms) for one, ms in bare if one.step.rows > max(table)]
    ends = {min(past)[0], max(past)[0]} if len(past) >= LEAST_SAMPLES else set()
    if len(ends) == 2:
        slope, start = np.polyfit([rows for rows, _ in past], [ms for _, ms in past], 1)
        table |= {rows: float(start + slope * rows) for rows in ends}
    names = ("trees_ms", "request_ms", "tree_ms", "beside", "beside_rows", "watch_ms", "follow_ms", "prompt_ms")
    return {"step_ms": sorted(table.items()), **dict(zip(names, further, strict=True))}


def _seen(calibration: dict[str, Any], points: Points) -> Iterator[_Seen]:
    """Steps of the fixed policies."""
    table = StepTable(calibration["step_ms"])
    proposals = parse_proposals(calibration["propose_ms"])
    for point in points:
        if point["policy"] == ADAPTIVE:
            continue
        between_ms = _between_ms(point)
        for step in samples(point):
            beside_ms = _beside_ms(point, step, proposals)
            hides_host = bool(calibration.get("overlaps")) and beside_ms > 0 and not step.wait_ms
            host = (0.0, 0.0, 0.0) if hides_host else (float(step.drafted > 0), step.requests, step.drafted)
            beside = (beside_ms, beside_ms * step.rows / 1e3)
            is_followed = point["policy"] != OFF
            watched = step.requests if is_followed and not step.drafted else 0
            followed = step.prefill_tokens if is_followed else 0
            features = (table.at_one(step.rows), *host, *beside, watched, followed, step.prefill_tokens)
            if watched:
                step = dataclasses.replace(step, step_ms=step.step_ms + between_ms)
            yield _Seen(step, features, beside_ms)


def _between_ms(point: dict[str, Any]) -> float:
    """What passes between steps where drafts are followed and few rounds have a tree: rows leave for the drafts. It is
    what clients see of a round, less what steps and waits account for."""
    steps = [step for step in samples(point) if not step.drafted and step.running >= _STEADY * point["phases"][0][1]]
    is_plain = point["speculative_rounds"] < _FEW * point["rounds"]
    if not (is_plain and len(point["phases"]) == 1 and len(steps) >= LEAST_SAMPLES and point["round_ms"]):
        return 0.0
    return max(0.0, float(point["round_ms"]) - statistics.fmean(step.step_ms + step.wait_ms for step in steps))


def _beside_ms(point: dict[str, Any], step: StepSample, proposals: ProposeTable) -> float:
    """That a draft was at work for the requests that the step left out, by its warm-up."""
    shape = None if point["policy"] == OFF else fixed_shape(point["policy"])
    is_steady = not point["is_open"] and len(point["phases"]) == 1
    running = step.running or (point["phases"][0][1] if is_steady else step.requests)
    num_away = running - step.requests
    if shape is None or shape not in proposals.growths or num_away < _LEAST_AWAY * running or step.wait_ms:
        return 0.0
    return proposals.of(shape).at_one(num_away)
