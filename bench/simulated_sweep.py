"""Predicts a measured sweep: from the times that its services measured of themselves, by the router's own policy."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from bench.load import Load
from bench.policies import ADAPTIVE, OFF, fixed_shape
from bench.simulated_adaptive import SimAdaptive
from bench.simulated_requests import KnownRequests
from bench.simulated_router import Fixed, SimRouter
from bench.simulated_world import World, parse_world
from bench.simulation import Simulation
from bench.sweep_document import load_of
from bench.sweep_report import Prediction
from paceline.errors import ConfigError

_DEFAULT_PROMPT, _WARM_UP_SECONDS = 64, 20.0
RPC_MS = 3.0


def predict(sweep: dict[str, Any]) -> Iterator[Prediction]:
    """Each policy at each load: the median over its repeats. Raises ConfigError where the services measured nothing."""
    world = world_of(sweep)
    adaptive = SimAdaptive(world, num_targets=sweep["settings"]["targets"])
    rates: dict[tuple[str, str], list[float]] = {}
    is_warm = False
    for point in sweep["points"]:
        router: SimRouter = adaptive
        if point["policy"] == ADAPTIVE:
            if not is_warm and (seconds := sweep["settings"]["warm_up_seconds"]):
                load = load_of(point)
                _rate(sweep, world, adaptive, dataclasses.replace(load, phases=((seconds, load.phases[0][1]),)), point)
                is_warm = True
            adaptive.begin()
        else:
            router = Fixed(fixed_shape(point["policy"]))
        rates.setdefault((point["load"], point["policy"]), []).append(
            _rate(sweep, world, router, load_of(point), point)
        )
    for (label, policy), values in rates.items():
        yield Prediction(label, policy, statistics.median(values))


def world_of(sweep: dict[str, Any]) -> World:
    """What the services measured when they warmed up, and how far the sweep's trees were accepted."""
    if not sweep["calibration"]["step_ms"] or not sweep["calibration"]["propose_ms"]:
        raise ConfigError("the services of the sweep did not say what their steps and trees take; update them")
    accepted: dict[str, list[tuple[float, int]]] = {}
    for point in sweep["points"]:
        if point["mean_accepted_length"] is not None and point["policy"] not in (OFF, ADAPTIVE):
            pair = point["mean_accepted_length"], point["speculative_rounds"]
            accepted.setdefault(point["policy"], []).append(pair)
    lengths = [
        {"shape": [int(part) for part in policy.split(",")], "length": _weighted_mean(pairs)}
        for policy, pairs in accepted.items()
    ]
    return parse_world({"name": "measured", "rpc_ms": RPC_MS, "accepted": lengths, **sweep["calibration"]})


def _rate(sweep: dict[str, Any], world: World, router: SimRouter, load: Load, point: dict[str, Any]) -> float:
    settings, requests = sweep["settings"], sweep["requests"]
    known = KnownRequests(
        _filled(requests["prompt_tokens"], _DEFAULT_PROMPT),
        _filled(requests["output_tokens"], settings["max_tokens"]),
        settings["max_tokens"],
        point["first_number"],
    )
    simulation = Simulation(
        dataclasses.replace(world, requests=known),
        router,
        num_targets=settings["targets"],
        num_drafts=settings["drafts"],
        seed=settings["seed"] + point["repeat"],
    )
    return simulation.run(load).rate(load.ramp_s, load.seconds)


def _weighted_mean(pairs: Sequence[tuple[float, int]]) -> float:
    return sum(value * weight for value, weight in pairs) / sum(weight for _, weight in pairs)


def _filled(values: Sequence[int | None], default: int) -> list[int]:
    """With the mean of those that are known in place of the others."""
    known = [value for value in values if value is not None]
    mean = round(statistics.fmean(known)) if known else default
    return [mean if value is None else value for value in values]
