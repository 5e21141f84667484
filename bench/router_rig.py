"""Rig: a router and what stands behind it, in the dress of one variant."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.router_dress import DIRECT, Dress, free_port
from bench.scraper import Scraper
from client.launcher import ROUTER_MODULE, Fleet
from client.launcher_config import FleetConfig
from client.process import ServiceProcess

_STUB_MODULE = "bench.stub_target"
_START_S = 60.0


@dataclass(frozen=True, slots=True)
class Rig:
    """router: whose CPU time counts; under DIRECT the target itself, to which clients talk then."""

    dress: Dress
    router: ServiceProcess
    first_tokens: Path | None = None  # where the target says when requests came and first tokens left

    def held_s(self) -> dict[str, float]:
        """By request id: seconds from its arrival at the target to its first token's leave, where that says so."""
        if self.first_tokens is None:
            return {}
        lines = (line.split() for line in self.first_tokens.read_text(encoding="utf-8").splitlines())
        return {name: float(left_s) - float(came_s) for name, came_s, left_s in lines}


@dataclass(frozen=True, slots=True)
class StubSettings:
    """The target without a model, and the router before it."""

    step_ms: float
    tokens_a_step: int
    router_flags: Sequence[str]


@contextlib.contextmanager
def stub_rig(dress: Dress, settings: StubSettings, folder: Path) -> Iterator[Rig]:
    """Logs go to the folder. Raises ServiceStartError."""
    name = dress.name
    first_tokens = folder / f"{name}-first-tokens.txt"
    flags = ["--step-ms", str(settings.step_ms), "--tokens-a-step", str(settings.tokens_a_step)]
    flags += ["--first-tokens", str(first_tokens), *dress.tls_flags()]
    with _started(_process(f"{name}-target", _STUB_MODULE, flags, folder)) as target:
        if name == DIRECT:
            yield Rig(dress, target, first_tokens)
            return
        port = free_port()
        flags = ["--targets", target.address, *dress.tls_flags(), *dress.observed_flags(port), *settings.router_flags]
        with (
            _started(_process(f"{name}-router", ROUTER_MODULE, flags, folder)) as router,
            contextlib.closing(Scraper([port] if dress.traces_url else [])),
        ):
            yield Rig(dress, router, first_tokens)


@contextlib.contextmanager
def fleet_rig(dress: Dress, router_flags: Sequence[str], folder: Path) -> Iterator[Rig]:
    """Router, target and draft with the default models. Raises ServiceStartError."""
    ports = [free_port() for _ in range(3)]
    flags = [dress.observed_flags(port) for port in ports]
    config = FleetConfig(
        log_dir=str(folder / dress.name),
        tls=dress.tls,
        router_flags=(*flags[0], *router_flags),
        target_flags=tuple(flags[1]),
        draft_flags=tuple(flags[2]),
    )
    with Fleet(config) as fleet, contextlib.closing(Scraper(ports if dress.traces_url else [])):
        assert fleet.router is not None
        yield Rig(dress, fleet.router)


def _process(name: str, module: str, flags: Sequence[str], folder: Path) -> ServiceProcess:
    return ServiceProcess(name, module, flags=flags, port=0, log_path=folder / f"{name}.log")


@contextlib.contextmanager
def _started(process: ServiceProcess) -> Iterator[ServiceProcess]:
    process.start()
    try:
        process.wait_ready(time.monotonic() + _START_S)
        yield process
    finally:
        process.stop(grace_s=1.0)
