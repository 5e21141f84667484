"""A whole measurement: the prompts, the services or the engine in process, the runs of all modes."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tqdm import tqdm

from bench.chat_prompt import ChatPrompt
from bench.config import BenchConfig
from bench.fleet_codec import FleetFacts, decode_fleet
from bench.load_generator import LoadGenerator, processes_for
from bench.outcome import Run
from bench.prompts import load_prompts, short_enough, shuffled, spread
from bench.round_profile import RoundProfile, profile_of
from bench.round_sampler import RoundSampler, SampledRound
from bench.workload import Variant, Workload
from bench.workload_flags import WorkloadFlags
from client.aio import AsyncPacelineClient
from client.credentials import Credentials
from client.launcher import Fleet
from client.process import ServiceUsage
from client.request import Sampling
from client.rounds import RoundSource
from paceline.errors import ConfigError, UnavailableError
from paceline.threads import num_cores, share_cores

DEFAULT_DTYPE = "bfloat16"
_WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class ServiceFigures:
    """What a service that was started for the measurement used: memory at the end, CPU seconds during the runs."""

    name: str
    rss_bytes: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """All runs in order of time. services is empty where none was started."""

    runs: tuple[Run, ...]
    num_prompts: int
    profiles: tuple[RoundProfile, ...] = ()
    services: tuple[ServiceFigures, ...] = ()


@dataclass(frozen=True, slots=True)
class _Part:
    """A run to come."""

    variant: Variant
    concurrency: int
    repeat: int
    num_requests: int


def choose_prompts(config: WorkloadFlags, *, is_mixed: bool) -> list[str]:
    """is_mixed: those of one kind do not follow each other, but all do in the same order each time.

    Raises InvalidInputError, and ModelLoadError where the lengths need a tokenizer that is missing.
    """
    prompts = load_prompts(config.prompts)
    if config.max_prompt_tokens is not None:
        template = ChatPrompt(config.model_path)
        prompts = short_enough(prompts, lambda text: len(template.ids(text)), limit=config.max_prompt_tokens)
    prompts = spread(prompts, config.num_prompts)
    return shuffled(prompts) if is_mixed else prompts


def workload_of(config: WorkloadFlags, prompts: Sequence[str], address: str) -> Workload:
    """What the router at this address is asked."""
    samplings = tuple(config.sampling(i) for i in range(len(prompts)))
    return Workload(address, tuple(prompts), samplings, Credentials(config.tls_files()))


def measure_services(config: BenchConfig, prompts: Sequence[str]) -> Measurement:
    """Raises a PacelineError where the services do not start, do not answer, or do not fit the flags."""
    if config.router:
        return _run_all(config, prompts, config.router, lambda: None)
    before: dict[str, ServiceUsage] = {}
    with Fleet(config.fleet(dtype=config.dtype or DEFAULT_DTYPE)) as fleet:

        def on_start() -> None:
            before.update({process.name: process.usage() for process in fleet.processes})

        measured = _run_all(config, prompts, fleet.router_address, on_start)
        after = {process.name: process.usage() for process in fleet.processes}
    figures = [ServiceFigures(name, used.rss_bytes, used.cpu_s - before[name].cpu_s) for name, used in after.items()]
    return dataclasses.replace(measured, services=tuple(figures))


def measure_in_process(config: BenchConfig, prompts: Sequence[str]) -> Measurement:
    """Without services: one request at a time. Raises a PacelineError."""
    share_cores(num_cores())  # read when torch is loaded; as the services run
    from bench.in_process import InProcessLoop  # torch is loaded for this mode alone

    loop = InProcessLoop(config, prompts, dtype=config.dtype or DEFAULT_DTYPE)
    runs = []
    schedule = _schedule(config, len(prompts))
    with tqdm(total=len(schedule) * len(prompts), unit="request", disable=None) as bar:
        for part in schedule:
            bar.set_description(part.variant.label)
            runs.append(loop.run(part.variant, repeat=part.repeat, on_end=bar.update))
    return Measurement(tuple(runs), len(prompts))


def _run_all(config: BenchConfig, prompts: Sequence[str], address: str, on_start: Callable[[], None]) -> Measurement:
    workload = workload_of(config, prompts, address)
    schedule = _schedule(config, len(prompts))
    num_processes = config.client_processes or max(map(processes_for, config.concurrencies))
    fleet = asyncio.run(prepare(config, workload, config.variants()))
    tls = workload.tls()
    sources = [RoundSource("target", address, tls) for address in fleet.targets]
    sources += [RoundSource("draft", address, tls) for address in fleet.drafts]
    on_start()
    runs = []
    rounds: dict[tuple[int, Variant], list[SampledRound]] = {}
    with (
        LoadGenerator(workload, num_processes) as generator,
        tqdm(total=sum(part.num_requests for part in schedule), unit="request", disable=None) as bar,
    ):
        for part in schedule:
            bar.set_description(f"{part.variant.label} at {part.concurrency}")
            with RoundSampler(sources if config.profile_round else ()) as sampler:
                run = generator.run(
                    part.variant,
                    part.num_requests,
                    concurrency=part.concurrency,
                    repeat=part.repeat,
                    on_progress=functools.partial(_advance, bar, bar.n),
                )
            if sampler.error is not None:
                raise sampler.error
            runs.append(run)
            rounds.setdefault((part.concurrency, part.variant), []).extend(sampler.rounds)
    return Measurement(tuple(runs), len(prompts), _profiles(runs, rounds))


def _profiles(
    runs: Sequence[Run], rounds: Mapping[tuple[int, Variant], Sequence[SampledRound]]
) -> tuple[RoundProfile, ...]:
    """Of each concurrency and variant, those left out of whose rounds too few were sampled."""
    profiles = []
    for (concurrency, variant), sampled in rounds.items():
        same = [run for run in runs if (run.concurrency, run.mode, run.shape) == (concurrency, *variant.key)]
        profiles.append(profile_of(same, sampled))
    return tuple(profile for profile in profiles if profile is not None)


def _advance(bar: tqdm, num_done: float, num_started: int) -> None:
    bar.update(num_done + num_started - bar.n)


async def prepare(config: WorkloadFlags, workload: Workload, variants: Sequence[Variant]) -> FleetFacts:
    """One short request of each variant, which is not measured. Returns what the router says of itself and its fleet.

    Raises a PacelineError where a request fails.
    """
    async with AsyncPacelineClient(workload.address, credentials=workload.credentials) as client:
        await _check_fit(config, client)
        sampling = Sampling(max_tokens=min(_WARM_UP_TOKENS, config.max_tokens), temperature=0.0)
        for variant in variants:
            await client.generate(workload.messages(0), sampling=sampling, options=variant.options()).result()
        return decode_fleet(await client.info())


async def _check_fit(config: WorkloadFlags, client: AsyncPacelineClient) -> None:
    ready = [replica.info for replica in (await client.info()).targets if replica.ready]
    if not ready:
        raise UnavailableError(f"the router at {client.address} has no target that is ready; see paceline info")
    for info in ready:
        if config.dtype not in (None, info.dtype):
            raise ConfigError(
                f"--dtype is {config.dtype}, but the services behind {client.address} run {info.dtype}: "
                "leave it out or start them with that dtype"
            )


def _schedule(config: BenchConfig, num_prompts: int) -> list[_Part]:
    """The variants are interleaved: what else the machine does then hits all alike."""
    return [
        _Part(variant, concurrency, repeat, config.num_requests(concurrency, num_prompts))
        for concurrency in config.concurrencies
        for repeat in range(config.repeat)
        for variant in config.variants()
    ]
