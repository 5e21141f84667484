"""A measured sweep as the values of its JSON file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

from bench.fleet_codec import FleetFacts
from bench.load import Load
from bench.report import percentiles
from bench.sweep_config import SweepConfig
from bench.sweep_form import is_sweep
from bench.sweep_runs import Sweep, SweepRun
from bench.target_link import StepSample
from client.completion import Completion
from client.figures import shares_by_depth
from paceline.errors import ConfigError
from paceline.stats import SpeculationStats
from paceline.types import FinishReason, TreeShape

STEP_FIELDS = tuple(field.name for field in dataclasses.fields(StepSample))


def sweep_document(config: SweepConfig, sweep: Sweep, num_prompts: int) -> dict[str, Any]:
    """Points in order of time, those with a failed request apart; what the services measured of themselves; how long
    each prompt and its answer is.
    """
    return {
        "settings": {
            "targets": max(1, len(sweep.fleet.targets)),
            "drafts": max(1, len(sweep.fleet.drafts)),
            "max_tokens": config.max_tokens,
            "seed": config.seed,
            "warm_up_seconds": config.warm_up_seconds,
        },
        "calibration": _calibration(sweep.fleet),
        "requests": _requests(sweep, num_prompts, config.max_tokens),
        "points": [
            _figures(run) | {"is_disturbed": run.other_work > config.max_other_work}
            for run in sweep.runs
            if not run.timed.errors
        ],
        "failed": [_failure(run) for run in sweep.runs if run.timed.errors],
    }


def read_sweeps(path: str, flag_name: str) -> list[dict[str, Any]]:
    """Of a file that --json wrote, one at least. Raises ConfigError naming the flag that names it."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--{flag_name} {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(_no_sweeps(path, flag_name)) from error
    sweeps = document.get("sweeps") if isinstance(document, dict) else None
    if not isinstance(sweeps, list) or not sweeps or not all(map(is_sweep, sweeps)):
        raise ConfigError(_no_sweeps(path, flag_name))
    return sweeps


def load_of(point: dict[str, Any]) -> Load:
    """The load of an entry of points."""
    phases = tuple((float(seconds), float(amount)) for seconds, amount in point["phases"])
    return Load(phases, is_open=point["is_open"], ramp_s=point["ramp_s"])


def _no_sweeps(path: str, flag_name: str) -> str:
    return f"--{flag_name} {path} is not what --json of paceline bench sweep wrote"


def _figures(swept: SweepRun) -> dict[str, Any]:
    """Times in milliseconds. Rounds are those of requests that came to their end; steps as in STEP_FIELDS."""
    point, run = swept.point, swept.timed
    stats: SpeculationStats = reduce(add, (completion.stats for completion in run.completions), SpeculationStats())
    return {
        "load": point.load.label,
        "is_open": point.load.is_open,
        "phases": [list(phase) for phase in point.load.phases],
        "ramp_s": point.load.ramp_s,
        "policy": point.policy,
        "repeat": point.repeat,
        "first_number": point.first_number,
        "tokens_per_s": run.tokens_per_s,
        "ttft_ms": percentiles(run.ttft_ms()),
        "tpot_ms": percentiles(run.tpot_ms()),
        "requests": len(run.outcomes),
        "completed": len(run.completions),
        "rounds": stats.rounds,
        "speculative_rounds": stats.speculative_rounds,
        "late_rounds": stats.late_rounds,
        "mean_accepted_length": stats.mean_accepted_length,
        "accepted_by_depth": shares_by_depth(stats),
        "round_ms": _round_ms(run.completions),
        "client_busy": run.client_busy,
        "other_work": swept.other_work,
        "steps": [[getattr(step, name) for name in STEP_FIELDS] for step in swept.steps],
    }


def _failure(swept: SweepRun) -> dict[str, Any]:
    """A request that fails ends its point, so that there is no rate to state."""
    point, errors = swept.point, swept.timed.errors
    return {
        "load": point.load.label,
        "policy": point.policy,
        "repeat": point.repeat,
        "requests": len(errors),
        "error": errors[0],
    }


def _round_ms(completions: Sequence[Completion]) -> float | None:
    """Between two rounds of a request, as clients see it: its first token comes before its first round."""
    num_rounds = sum(completion.stats.rounds for completion in completions)
    seconds = sum(completion.last_token_s - completion.first_token_s for completion in completions)
    return seconds / num_rounds * 1e3 if num_rounds else None


def _calibration(fleet: FleetFacts) -> dict[str, Any]:
    """In the form of bench/worlds."""
    return {
        "step_ms": [[rows, ms] for rows, ms in sorted(fleet.step_ms.items())],
        "propose_ms": [
            {"shape": _numbers(shape), "by_sessions": [[sessions, ms] for sessions, ms in sorted(times.items())]}
            for shape, times in fleet.propose_ms.items()
        ],
        "overlaps": fleet.overlaps,
        "shares_host": fleet.shares_host,
    }


def _requests(sweep: Sweep, num_prompts: int, max_tokens: int) -> dict[str, Any]:
    """Of each prompt: its tokens, those of its answer, and speculative rounds and accepted drafts by policy.

    Tokens are null where no answer came to its end.
    """
    answers: list[list[Completion]] = [[] for _ in range(num_prompts)]
    drafts: dict[str, list[list[int]]] = {}
    for run in sweep.runs:
        by_prompt = drafts.setdefault(run.point.policy, [[0, 0] for _ in range(num_prompts)])
        for number, outcome in run.timed.outcomes.items():
            if outcome.completion is not None:
                answers[number % num_prompts].append(outcome.completion)
                by_prompt[number % num_prompts][0] += outcome.completion.stats.speculative_rounds
                by_prompt[number % num_prompts][1] += outcome.completion.stats.accepted_drafts
    return {
        "prompt_tokens": [len(its[0].prompt_ids) if its else None for its in answers],
        "output_tokens": [_output_tokens(its, max_tokens) for its in answers],
        "drafts": drafts,
    }


def _output_tokens(answers: Sequence[Completion], max_tokens: int) -> int | None:
    """Some may have been cut short by a smaller limit."""
    stopped = [len(answer.token_ids) for answer in answers if answer.finish_reason is FinishReason.STOP]
    if stopped:
        return max(stopped)
    return max_tokens if answers else None


def _numbers(shape: TreeShape) -> list[int]:
    return [shape.num_steps, shape.eagle_topk, shape.num_draft_tokens]
