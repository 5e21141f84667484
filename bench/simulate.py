"""``paceline bench simulate``: what policies would give on a fleet of any size, from measured times alone."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bench.load import Load, closed_loads, open_loads, phased_load
from bench.policies import ADAPTIVE, OFF, fixed_shape, parse_policies, shape_name
from bench.report import percentiles
from bench.simulated_adaptive import SimAdaptive
from bench.simulated_request import Tally
from bench.simulated_requests import RandomRequests
from bench.simulated_router import Fixed, SimRouter
from bench.simulated_truth import served_world
from bench.simulated_world import World, load_world
from bench.simulation import Simulation
from bench.sweep_document import read_sweeps
from bench.writing import check_writable
from paceline.config import flag, parse_flags, require

_WORLDS = Path(__file__).with_name("worlds")


@dataclass(frozen=True, slots=True)
class SimulateConfig:
    """Simulate targets, drafts and clients over measured times, one run for each load and policy.

    Raises ConfigError.
    """

    world: str = flag("h200_8b", help="measured times: a file, or the name of one in bench/worlds")
    sweep: str = flag("", help="times that a measured sweep's services reported, instead: the file of its --json")
    policies: str = flag(
        "", help="like off;3,1,4;adaptive: trees by steps,topk,nodes; unset: off, all measured trees and adaptive"
    )
    concurrency: tuple[str, ...] = flag(("1", "8", "64", "256"), help="requests in flight, a run each: a closed loop")
    rates: tuple[str, ...] = flag((), help="arrivals a second instead, a run each: an open loop")
    phases: str = flag("", help="one run instead, of seconds:amount;...: the amount is as the others, in turn")
    seconds: float = flag(10.0, help="of a run, on the simulation's clock")
    warm_up_seconds: float = flag(2.0, help="of a run, which are not counted; with --phases all is")
    targets: int = flag(1, help="target services")
    drafts: int = flag(1, help="draft services")
    drafts_apart: bool = flag(False, help="drafts on devices and hosts of their own: they take nothing from a step")
    prompt_tokens: float = flag(110.0, help="of a request, on average")
    output_tokens: float = flag(128.0, help="of a request, on average")
    join_rounds: bool = flag(False, help="fixed trees: prompts and plain requests join their steps, long as they wait")
    seed: int = flag(0, help="of lengths, arrivals and luck")
    json: str = flag("", help="file for the results; - is stdout")

    def __post_init__(self) -> None:
        for name in ("targets", "drafts"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        require(0 <= self.warm_up_seconds < self.seconds, "warm_up_seconds", self.warm_up_seconds, "below --seconds")
        for name in ("prompt_tokens", "output_tokens"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        self.loads()

    def loads(self) -> list[Load]:
        """One a run. Raises ConfigError."""
        if self.phases:
            return [phased_load(self.phases, is_open=bool(self.rates))]
        of = open_loads(self.rates, self.seconds, ramp_s=self.warm_up_seconds)
        return of or closed_loads(self.concurrency, self.seconds, ramp_s=self.warm_up_seconds)


def main(argv: Sequence[str]) -> int:
    """Exit code 0. Raises ConfigError."""
    config = parse_flags(SimulateConfig, argv, prog="paceline bench simulate")
    check_writable(config.json, "json")
    document = simulate(config)
    if config.json and config.json != "-":
        Path(config.json).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(document, indent=2) if config.json == "-" else table(document))
    return 0


def simulate(config: SimulateConfig) -> dict[str, Any]:
    """All runs. Raises ConfigError."""
    requests = RandomRequests(config.prompt_tokens, config.output_tokens)
    world = dataclasses.replace(_world(config), requests=requests)
    if config.drafts_apart:
        world = dataclasses.replace(world, beside=0.0, beside_rows=0.0, slowed=0.0, follow_ms=0.0, shares_host=False)
    policies = _policies(config, world)
    loads = config.loads()
    runs = []
    with tqdm(total=len(loads) * len(policies), unit="run", disable=None) as bar:
        for load in loads:
            for name in policies:
                bar.set_description(name)
                runs.append(_figures(load, name, _run(config, world, load, name)))
                bar.update()
    return {"world": world.name, "targets": config.targets, "drafts": config.drafts, "runs": runs}


def table(document: dict[str, Any]) -> str:
    """Tokens a second by load and policy; ratio: adaptive over the best of the others."""
    runs = document["runs"]
    names = list(dict.fromkeys(run["policy"] for run in runs))
    loads = list(dict.fromkeys(run["load"] for run in runs))
    rates = {(run["load"], run["policy"]): run["tokens_per_s"] for run in runs}
    lines = [f"{document['world']}: {document['targets']} target(s), {document['drafts']} draft(s), tokens/s", ""]
    lines += ["| load | " + " | ".join([*names, "ratio"]) + " |", "|---" * (len(names) + 2) + "|"]
    for load in loads:
        others = [rates[load, name] for name in names if name != ADAPTIVE]
        ratio = f"{rates[load, ADAPTIVE] / max(others):.3f}" if ADAPTIVE in names and others else "-"
        lines.append("| " + " | ".join([load, *(f"{rates[load, name]:.0f}" for name in names), ratio]) + " |")
    return "\n".join(lines)


def _world(config: SimulateConfig) -> World:
    if config.sweep:
        return served_world(read_sweeps(config.sweep, "sweep")[0])
    named = _WORLDS / f"{config.world}.json"
    return load_world(named if named.exists() else Path(config.world))


def _run(config: SimulateConfig, world: World, load: Load, name: str) -> Tally:
    router: SimRouter
    if name == ADAPTIVE:
        router = SimAdaptive(world, num_targets=config.targets)
    else:
        router = Fixed(fixed_shape(name), True if config.join_rounds else None)
    simulation = Simulation(world, router, num_targets=config.targets, num_drafts=config.drafts, seed=config.seed)
    return simulation.run(load)


def _figures(load: Load, name: str, tally: Tally) -> dict[str, Any]:
    rounds = tally.drafted_rounds
    return {
        "load": load.label,
        "policy": name,
        "tokens_per_s": tally.rate(load.ramp_s, load.seconds),
        "mean_accepted_length": tally.accepted_tokens / rounds if rounds else None,
        "ttft_ms": percentiles(tally.ttft_ms),
        "tpot_ms": percentiles(tally.tpot_ms),
    }


def _policies(config: SimulateConfig, world: World) -> tuple[str, ...]:
    if config.policies:
        return parse_policies(config.policies)
    return (OFF, *map(shape_name, world.proposals.growths), ADAPTIVE)
