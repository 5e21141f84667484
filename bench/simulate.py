"""``paceline bench simulate``: what policies would give on a fleet of any size, from measured times alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from bench.simulated_adaptive import SimAdaptive
from bench.simulated_request import Tally
from bench.simulated_router import Fixed, SimRouter
from bench.simulated_world import Load, Requests, World, load_world
from bench.simulation import Simulation
from paceline.config import flag, parse_flags, require
from paceline.errors import ConfigError, PacelineError
from paceline.types import TreeShape

_WORLDS = Path(__file__).with_name("worlds")
_ADAPTIVE, _OFF = "adaptive", "off"


@dataclass(frozen=True, slots=True)
class SimulateConfig:
    """Simulate targets, drafts and clients over measured times, one run for each load and policy.

    Raises ConfigError.
    """

    world: str = flag("h200_8b", help="measured times: a file, or the name of one in bench/worlds")
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
    prompt_tokens: float = flag(110.0, help="of a request, on average")
    output_tokens: float = flag(128.0, help="of a request, on average")
    join_rounds: bool = flag(False, help="fixed trees: prompts and plain requests join their steps, too")
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
        requests, is_open = Requests(self.prompt_tokens, self.output_tokens), bool(self.rates)
        if self.phases:
            parts = [part.split(":") for part in self.phases.split(";")]
            if not all(len(part) == 2 for part in parts):
                raise ConfigError(f"--phases is {self.phases!r}; write seconds:amount;..., like 8:2;4:128;8:2")
            return [Load(tuple((_number(s), _number(amount)) for s, amount in parts), is_open, requests)]
        return [Load(((self.seconds, _number(a)),), is_open, requests) for a in self.rates or self.concurrency]


def main(argv: Sequence[str]) -> int:
    """Exit codes: 0, and those of the typed errors."""
    try:
        config = parse_flags(SimulateConfig, argv, prog="paceline bench simulate")
        document = simulate(config)
        if config.json and config.json != "-":
            Path(config.json).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        print(json.dumps(document, indent=2) if config.json == "-" else table(document))
    except PacelineError as error:
        print(f"paceline bench simulate: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def simulate(config: SimulateConfig) -> dict[str, Any]:
    """All runs. Raises ConfigError."""
    named = _WORLDS / f"{config.world}.json"
    world = load_world(named if named.exists() else Path(config.world))
    policies = _policies(config, world)
    loads = config.loads()
    runs = []
    with tqdm(total=len(loads) * len(policies), unit="run", disable=None) as bar:
        for load in loads:
            for name in policies:
                bar.set_description(name)
                runs.append(_figures(config, load, name, _run(config, world, load, name)))
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
        others = [rates[load, name] for name in names if name != _ADAPTIVE]
        ratio = f"{rates[load, _ADAPTIVE] / max(others):.3f}" if _ADAPTIVE in names and others else "-"
        lines.append("| " + " | ".join([load, *(f"{rates[load, name]:.0f}" for name in names), ratio]) + " |")
    return "\n".join(lines)


def _run(config: SimulateConfig, world: World, load: Load, name: str) -> Tally:
    router: SimRouter
    if name == _ADAPTIVE:
        router = SimAdaptive(world, num_targets=config.targets)
    else:
        router = Fixed(_shape(name), config.join_rounds)
    simulation = Simulation(world, router, num_targets=config.targets, num_drafts=config.drafts, seed=config.seed)
    return simulation.run(load)


def _figures(config: SimulateConfig, load: Load, name: str, tally: Tally) -> dict[str, Any]:
    stop_s = sum(seconds for seconds, _ in load.phases)
    start_s = 0.0 if config.phases else config.warm_up_seconds
    amounts = "-".join(f"{amount:g}" for _, amount in load.phases)
    rounds = tally.drafted_rounds
    return {
        "load": f"{amounts}/s" if load.is_open else amounts,
        "policy": name,
        "tokens_per_s": tally.rate(start_s, stop_s),
        "mean_accepted_length": tally.accepted_tokens / rounds if rounds else None,
        "ttft_ms": _percentiles(tally.ttft_ms),
        "tpot_ms": _percentiles(tally.tpot_ms),
    }


def _policies(config: SimulateConfig, world: World) -> list[str]:
    if not config.policies:
        return [_OFF, *map(_name, world.proposals.growths), _ADAPTIVE]
    names = config.policies.split(";")
    for name in names:
        if name != _ADAPTIVE:
            _shape(name)
    return names


def _shape(name: str) -> TreeShape | None:
    """Raises ConfigError, or InvalidInputError for a shape that no tree has."""
    if name == _OFF:
        return None
    numbers = name.split(",")
    if len(numbers) != 3 or not all(number.isdecimal() for number in numbers):
        raise ConfigError(f"--policies holds {name!r}; it takes off, adaptive and steps,topk,nodes, with ; between")
    return TreeShape(*map(int, numbers))


def _name(shape: TreeShape) -> str:
    return f"{shape.num_steps},{shape.eagle_topk},{shape.num_draft_tokens}"


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} among --concurrency, --rates or --phases is no number") from error
    require(number > 0, "concurrency", text, "above 0, and so are --rates and --phases")
    return number


def _percentiles(values: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return {"p50": None, "p99": None}
    p50, p99 = np.percentile(values, [50, 99]).tolist()
    return {"p50": p50, "p99": p99}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
