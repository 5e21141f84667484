"""A whole measurement: the prompts, the services or the engine in process, the runs of all modes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tqdm import tqdm

from bench.chat_prompt import ChatPrompt
from bench.closed_loop import ClosedLoop
from bench.config import BenchConfig
from bench.outcome import Run
from bench.prompts import load_prompts, short_enough, spread
from client.aio import AsyncPacelineClient
from client.launcher import Fleet
from client.process import ServiceUsage
from paceline.errors import ConfigError, UnavailableError
from paceline.threads import num_cores, share_cores

_DEFAULT_DTYPE = "bfloat16"


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
    services: tuple[ServiceFigures, ...] = ()


def choose_prompts(config: BenchConfig) -> list[str]:
    """Raises InvalidInputError, and ModelLoadError where the lengths need a tokenizer that is missing."""
    prompts = load_prompts(config.prompts)
    if config.max_prompt_tokens is not None:
        template = ChatPrompt(config.model_path)
        prompts = short_enough(prompts, lambda text: len(template.ids(text)), limit=config.max_prompt_tokens)
    return spread(prompts, config.num_prompts)


def measure_services(config: BenchConfig, prompts: Sequence[str]) -> Measurement:
    """Raises a PacelineError where the services do not start, do not answer, or do not fit the flags."""
    if config.router:
        return Measurement(asyncio.run(_run_all(config, prompts, config.router, lambda: None)))
    before: dict[str, ServiceUsage] = {}
    with Fleet(config.fleet(dtype=config.dtype or _DEFAULT_DTYPE)) as fleet:

        def on_start() -> None:
            before.update({process.name: process.usage() for process in fleet.processes})

        runs = asyncio.run(_run_all(config, prompts, fleet.router_address, on_start))
        after = {process.name: process.usage() for process in fleet.processes}
    figures = [ServiceFigures(name, used.rss_bytes, used.cpu_s - before[name].cpu_s) for name, used in after.items()]
    return Measurement(runs, tuple(figures))


def measure_in_process(config: BenchConfig, prompts: Sequence[str]) -> Measurement:
    """Without services: one request at a time. Raises a PacelineError."""
    share_cores(num_cores())  # read when torch is loaded; as the services run
    from bench.in_process import InProcessLoop  # torch is loaded for this mode alone

    loop = InProcessLoop(config, prompts, dtype=config.dtype or _DEFAULT_DTYPE)
    runs = []
    with _progress(config, prompts) as bar:
        for repeat, mode in _schedule(config):
            bar.set_description(mode)
            runs.append(loop.run(mode, repeat=repeat, on_end=bar.update))
    return Measurement(tuple(runs))


async def _run_all(
    config: BenchConfig, prompts: Sequence[str], address: str, on_start: Callable[[], None]
) -> tuple[Run, ...]:
    runs = []
    async with AsyncPacelineClient(address) as client:
        await _check_fit(config, client)
        loop = ClosedLoop(client, config, prompts)
        for mode in config.compare:
            await loop.warm_up(mode)
        on_start()
        with _progress(config, prompts) as bar:
            for repeat, mode in _schedule(config):
                bar.set_description(mode)
                runs.append(await loop.run(mode, repeat=repeat, on_end=bar.update))
    return tuple(runs)


async def _check_fit(config: BenchConfig, client: AsyncPacelineClient) -> None:
    ready = [replica.info for replica in (await client.info()).targets if replica.ready]
    if not ready:
        raise UnavailableError(f"the router at {client.address} has no target that is ready; see paceline info")
    for info in ready:
        if config.dtype not in (None, info.dtype):
            raise ConfigError(
                f"--dtype is {config.dtype}, but the services behind {client.address} run {info.dtype}: "
                "leave it out or start them with that dtype"
            )


def _schedule(config: BenchConfig) -> list[tuple[int, str]]:
    """(repeat, mode), interleaved: what else the machine does then hits all modes alike."""
    return [(repeat, mode) for repeat in range(config.repeat) for mode in config.compare]


def _progress(config: BenchConfig, prompts: Sequence[str]) -> AbstractContextManager[tqdm]:
    total = len(prompts) * len(config.compare) * config.repeat
    return tqdm(total=total, unit="request", disable=None)
