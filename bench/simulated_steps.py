"""A target's step times in a measured sweep: by rows, and what its requests, their trees and a draft beside it add."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.policies import ADAPTIVE, OFF, fixed_shape
from bench.simulated_fit import fit_parts
from bench.sweep_document import STEP_FIELDS
from bench.target_link import StepSample
from paceline.step_table import StepTable
from router.cost_tables import ProposeTable
from router.step_costs import TREE_MS

LEAST_SAMPLES = 4  # of a kind, to count

_LEAST_AWAY = 0.25  # share of the requests that a step leaves out for their trees; fewer came or went
_ROWS = (1, *(round(2 ** (half / 2)) for half in range(2, 23)))  # 1 to 2048: between them steps grow straight
_FIRST_STD = 0.5  # of a step of one row, relative to the warm-up's
_GROWTH_STD = 0.7  # of what it grows by up to the next of these rows, relative to the warm-up's
_LEAST_GROWTH = 0.03  # of a step of one row: the same where the warm-up saw none
_ONE_ROW_MS = 4.4  # where TREE_MS was measured
# What a world's parts of a step are taken for before any was seen, and give or take how much. Of the warm-up's step of
# one row:
_BY_STEP = {
    "request_ms": (0.0, 0.02),
    "several_ms": (0.0, 0.1),
    "trees_ms": (0.0, 0.15),
    "tree_ms": (TREE_MS / _ONE_ROW_MS, TREE_MS / _ONE_ROW_MS),
    "watch_ms": (0.0, 0.005),
    "follow_ms": (0.0, 0.0025),
    "prompt_ms": (0.0, 0.005),
}
_BY_DRAFT = {"beside": (0.0, 1.0), "beside_rows": (0.0, 1.0)}  # of a draft's work beside it
PARTS = (*_BY_STEP, *_BY_DRAFT)

Points = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class SeenStep:
    """features: what PARTS are times of."""

    step: StepSample
    features: tuple[float, ...]


def samples(point: dict[str, Any]) -> Iterator[StepSample]:
    """The steps of a sweep's point that were sampled."""
    for values in point["steps"]:
        yield StepSample(**dict(zip(STEP_FIELDS, values, strict=False)))


def served_steps(calibration: dict[str, Any], points: Points, proposals: ProposeTable) -> dict[str, Any]:
    """Fields of a world: one fit over all steps of what they take by rows, which never falls, and what grows with their
    requests, trees, prompts and a draft's work, by its times in the sweep. Where few were seen it is the warm-up's."""
    warm = StepTable([(int(rows), float(ms)) for rows, ms in calibration["step_ms"]])
    seen = [one for point in points if point["policy"] != ADAPTIVE for one in seen_steps(calibration, point, proposals)]
    if not seen:
        return {"step_ms": calibration["step_ms"]}
    unit = warm.one_row_ms
    growth = np.diff([warm.at_one(rows) for rows in _ROWS])
    prior = [(unit, _FIRST_STD * unit)]
    prior += [(ms, _GROWTH_STD * ms + _LEAST_GROWTH * unit) for ms in growth.tolist()]
    prior += [*((mean * unit, std * unit) for mean, std in _BY_STEP.values()), *_BY_DRAFT.values()]
    features = [(1.0, *_grown(one.step.rows), *one.features) for one in seen]
    weights = fit_parts(features, [one.step.step_ms for one in seen], prior=prior)
    by_rows, parts = np.cumsum(weights[: len(_ROWS)]), weights[len(_ROWS) :]
    return {"step_ms": list(zip(_ROWS, by_rows.tolist(), strict=True)), **dict(zip(PARTS, parts, strict=True))}


def _grown(rows: int) -> list[float]:
    """Of what a step grows by from each of _ROWS to the next, the part that it has at so many."""
    return [min(1.0, max(0.0, (rows - few) / (many - few))) for few, many in itertools.pairwise(_ROWS)]


def seen_steps(calibration: dict[str, Any], point: dict[str, Any], proposals: ProposeTable) -> Iterator[SeenStep]:
    """Steps of one point; of the adaptive policy those beside which no draft worked, for it is not known which."""
    overlaps, is_adaptive = bool(calibration.get("overlaps")), point["policy"] == ADAPTIVE
    for step in samples(point):
        if is_adaptive and overlaps and step.drafted and not step.wait_ms:
            continue
        is_followed = step.drafted > 0 if is_adaptive else point["policy"] != OFF
        beside_ms = 0.0 if is_adaptive else _beside_ms(point, step, proposals)
        hides_host = overlaps and beside_ms > 0 and not step.wait_ms
        is_apart = not hides_host and (step.drafted > 0 or (overlaps and is_followed))
        host = (step.requests, float(step.requests > 1), float(is_apart), step.drafted if is_apart else 0)
        beside = (beside_ms, beside_ms * step.rows / 1e3)
        watched = step.requests if is_followed and not step.drafted else 0
        followed = step.prefill_tokens if is_followed else 0
        yield SeenStep(step, (*host, watched, followed, step.prefill_tokens, *beside))


def _beside_ms(point: dict[str, Any], step: StepSample, proposals: ProposeTable) -> float:
    """That a draft was at work for the requests that the step left out."""
    shape = None if point["policy"] == OFF else fixed_shape(point["policy"])
    is_steady = not point["is_open"] and len(point["phases"]) == 1
    running = step.running or (point["phases"][0][1] if is_steady else step.requests)
    num_away = running - step.requests
    if shape is None or shape not in proposals.growths or num_away < _LEAST_AWAY * running or step.wait_ms:
        return 0.0
    return proposals.of(shape).at_one(num_away)
