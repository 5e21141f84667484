"""Predicts a measured sweep: the router's own policy, over times that the sweep's services reported."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench.load import Load
from bench.policies import ADAPTIVE, fixed_shape
from bench.simulated_adaptive import SimAdaptive
from bench.simulated_pace import paces
from bench.simulated_request import Tally
from bench.simulated_requests import KnownRequests
from bench.simulated_router import Fixed, SimRound, SimRouter
from bench.simulated_truth import calibrated_world, served_world, skills_of
from bench.simulation import Simulation
from bench.sweep_document import load_of
from bench.sweep_report import Prediction
from paceline.defaults import DEFAULT_TREE
from router.plan_rows import PlannerSettings
from router.step_report import StepReport

# Where so many rounds are late, a draft is at its deadline, and luck decides whether it is asked at all from then on:
_CLOSE = 0.02  # of the rounds with a tree
_LUCKS = 5  # that such a point's rate is the mean of
_APART = 1_000  # seeds
_DEFAULT_PROMPT = 64  # tokens, where no prompt's are known


def predict(sweep: dict[str, Any]) -> Iterator[Prediction]:
    """Each policy at each load: the median over its repeats, with the sweep's own requests in its own order.

    The adaptive policy starts from what the services measured when they warmed up, hears of the steps of all points,
    and keeps what it learns from point to point, as it did in the sweep. Raises ConfigError where the services
    measured nothing.
    """
    stage = _Stage(sweep)
    rates: dict[tuple[str, str], list[float]] = {}
    for point in sweep["points"]:
        rates.setdefault((point["load"], point["policy"]), []).append(stage.rate(point))
    for (label, policy), values in rates.items():
        yield Prediction(label, policy, statistics.median(values))


@dataclass(frozen=True, slots=True)
class _Heard(Fixed):
    """One shape for all, of a router that decides adaptively where requests do not say."""

    adaptive: SimAdaptive | None = None

    def report(self, target: int, step: StepReport, rounds: list[SimRound], now_s: float) -> None:
        assert self.adaptive is not None
        self.adaptive.hear(target, step, now_s)

    def is_joined(self, target: int) -> bool | None:
        assert self.adaptive is not None
        return self.adaptive.is_joined(target)


class _Stage:
    """Where points are simulated, in the order in which they were measured."""

    def __init__(self, sweep: dict[str, Any]) -> None:
        settings, requests = sweep["settings"], sweep["requests"]
        self._settings = settings
        world = served_world(sweep)
        known = KnownRequests(
            _filled(requests["prompt_tokens"], _DEFAULT_PROMPT),
            _filled(requests["output_tokens"], settings["max_tokens"]),
            skills_of(sweep, world),
            settings["max_tokens"],
        )
        self._world, self._known = world, known
        self._paces = dict(
            zip(map(_key, sweep["points"]), paces(sweep["calibration"], sweep["points"], world), strict=True)
        )
        default = PlannerSettings(default=DEFAULT_TREE)
        self._adaptive = SimAdaptive(calibrated_world(sweep), default, num_targets=settings["targets"])
        self._has_warmed_up = not settings["warm_up_seconds"]
        self._earlier: Simulation | None = None

    def rate(self, point: dict[str, Any]) -> float:
        load = load_of(point)
        if not self._has_warmed_up:
            self._has_warmed_up = True
            amount = load.phases[0][1]
            warm_up = Load(((self._settings["warm_up_seconds"], amount),), is_open=load.is_open)
            self._earlier = self._run(self._adaptive, warm_up, point)[0]
            self._adaptive.begin()
        shape = None if point["policy"] == ADAPTIVE else fixed_shape(point["policy"])
        is_adaptive = point["policy"] == ADAPTIVE
        router = self._adaptive if is_adaptive else _Heard(shape, adaptive=self._adaptive)
        played, tally = self._run(router, load, point)
        rates = [tally.rate(load.ramp_s, load.seconds)]
        if not is_adaptive and tally.late_rounds > _CLOSE * tally.drafted_rounds:
            others = (self._run(Fixed(shape, router.is_joined(0)), load, point, luck=luck) for luck in range(1, _LUCKS))
            rates += [its.rate(load.ramp_s, load.seconds) for _, its in others]
        self._earlier = played
        self._adaptive.begin()
        return statistics.fmean(rates)

    def _run(self, router: SimRouter, load: Load, point: dict[str, Any], *, luck: int = 0) -> tuple[Simulation, Tally]:
        requests = dataclasses.replace(self._known, first_number=point["first_number"])
        simulation = Simulation(
            dataclasses.replace(self._world, requests=requests, pace=self._paces[_key(point)]),
            router,
            num_targets=self._settings["targets"],
            num_drafts=self._settings["drafts"],
            seed=self._settings["seed"] + point["repeat"] + _APART * luck,
        )
        if self._earlier is not None:
            simulation.resume(self._earlier)
        return simulation, simulation.run(load)


def _key(point: dict[str, Any]) -> tuple[str, str, int]:
    return point["load"], point["policy"], point["repeat"]


def _filled(values: Sequence[int | None], default: int) -> list[int]:
    """With the mean of those that are known in place of the others."""
    known = [value for value in values if value is not None]
    mean = round(statistics.fmean(known)) if known else default
    return [mean if value is None else value for value in values]
