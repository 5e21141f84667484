"""The measurement of a sweep: every policy at every load, on one fleet, interleaved."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tqdm import tqdm

from bench.fleet_codec import FleetFacts
from bench.load import Load
from bench.load_generator import LoadGenerator, processes_for
from bench.measure import DEFAULT_DTYPE, prepare, workload_of
from bench.other_work import OtherWork
from bench.policies import ADAPTIVE, variant_of
from bench.step_sampler import StepSampler
from bench.sweep_config import SweepConfig
from bench.target_link import StepSample
from bench.timed_run import TimedRun
from client.launcher import Fleet
from paceline.errors import ConfigError

_POLICY_FLAG = "--speculative-policy=adaptive"  # requests ask for the fixed policies themselves
_MOST_TRIES = 3  # of a point that other processes disturb


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One policy at one load, once. first_number: of its requests, the same for all policies of a repeat."""

    policy: str
    load: Load
    repeat: int
    first_number: int


@dataclass(frozen=True, slots=True)
class SweepRun:
    """What came of a point; steps: some of those that the targets ran meanwhile; other_work: share of the machine that
    neither the services that were started nor their clients used."""

    point: SweepPoint
    timed: TimedRun
    steps: tuple[StepSample, ...]
    other_work: float


@dataclass(frozen=True, slots=True)
class Sweep:
    """All runs in order of time, and what the router knew of its fleet."""

    runs: tuple[SweepRun, ...]
    fleet: FleetFacts


def measure_sweep(config: SweepConfig, prompts: Sequence[str]) -> Sweep:
    """Starts services, unless the flags name a router.

    Ctrl-C ends it early with the points so far. Raises a PacelineError where the services do not start, do not answer,
    or do not fit the flags.
    """
    if config.router:
        return _run_all(config, prompts, config.router)
    flags = config.fleet(dtype=config.dtype or DEFAULT_DTYPE)
    with Fleet(dataclasses.replace(flags, router_flags=(_POLICY_FLAG, *flags.router_flags))) as fleet:
        return _run_all(config, prompts, fleet.router_address)


def _run_all(config: SweepConfig, prompts: Sequence[str], address: str) -> Sweep:
    workload = workload_of(config, prompts, address)
    points = list(_points(config, len(prompts)))
    fleet = asyncio.run(prepare(config, workload, [variant_of(name) for name in config.names()]))
    if config.is_adaptive and fleet.policy != ADAPTIVE:
        raise ConfigError(
            f"the router at {address} has the policy {fleet.policy!r}: start it with "
            "--speculative-policy adaptive, or leave adaptive out of --policies"
        )
    num_processes = config.client_processes or processes_for(round(max(load.most for load in config.loads())))
    runs: list[SweepRun] = []
    with (
        LoadGenerator(workload, num_processes) as generator,
        StepSampler(fleet.targets, workload.tls()) as sampler,
        tqdm(total=sum(point.load.seconds for point in points), unit="s", disable=None) as bar,
    ):
        stage = _Stage(config, generator, sampler)
        try:
            if config.is_adaptive and config.warm_up_seconds:
                stage.play(_warm_up(config, points[0]))
            for point in points:
                bar.set_description(f"{point.policy} at {point.load.label}")
                runs.append(stage.play_undisturbed(point))
                bar.update(point.load.seconds)
        except KeyboardInterrupt:
            if not runs:
                raise
    return Sweep(tuple(runs), fleet)


@dataclass(frozen=True, slots=True)
class _Stage:
    """Where points are played."""

    config: SweepConfig
    generator: LoadGenerator
    sampler: StepSampler

    def play_undisturbed(self, point: SweepPoint) -> SweepRun:
        """Again where other processes used too much of the machine; returns the least disturbed."""
        tries = [self.play(point)]
        while min(run.other_work for run in tries) > self.config.max_other_work and len(tries) < _MOST_TRIES:
            tries.append(self.play(point))
        return min(tries, key=lambda run: run.other_work)

    def play(self, point: SweepPoint) -> SweepRun:
        self.sampler.take()
        variant, work = variant_of(point.policy), OtherWork()
        seed = self.config.seed + point.repeat
        timed = self.generator.play(variant, point.load, first_number=point.first_number, seed=seed)
        return SweepRun(point, timed, tuple(self.sampler.take()), work.share())


def _points(config: SweepConfig, num_prompts: int) -> Iterator[SweepPoint]:
    """Repeats take other prompts; the policies of one follow each other, so that what else the machine does hits all
    alike."""
    for load in config.loads():
        for repeat in range(config.repeat):
            for policy in config.names():
                yield SweepPoint(policy, load, repeat, repeat * num_prompts // config.repeat)


def _warm_up(config: SweepConfig, first: SweepPoint) -> SweepPoint:
    amount = first.load.phases[0][1]
    load = Load(((config.warm_up_seconds, amount),), is_open=first.load.is_open)
    return dataclasses.replace(first, policy=ADAPTIVE, load=load)
