"""``python -m bench.stub_target``: a target without a model as a process of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bench.step_clock import StepClock
from bench.stub_target_servicer import TARGET_NAME, StubTargetServicer
from paceline.config import exit_with, flag, parse_flags, require
from paceline.errors import PacelineError
from paceline.plumbing import Plumbing, ServiceFlags
from paceline.rpc import termination_event


@dataclass(frozen=True, slots=True)
class StubConfig(ServiceFlags):
    """Emit tokens on a clock, to a router or to clients themselves. Raises ConfigError."""

    host: str = flag("127.0.0.1", help="address to listen on")
    port: int = flag(0, help="port to listen on; 0 takes a free one")
    step_ms: float = flag(17.0, help="milliseconds of a step; 0: as fast as its tokens are taken")
    tokens_a_step: int = flag(1, help="tokens of each request in a step")
    first_tokens: str = flag("/dev/null", help="file that says when each request came, and when its first token left")

    def __post_init__(self) -> None:
        self.check_service_flags()
        require(self.step_ms >= 0, "step_ms", self.step_ms, "0 or more")
        require(self.tokens_a_step >= 1, "tokens_a_step", self.tokens_a_step, "at least 1")


def main(argv: Sequence[str]) -> None:
    """Prints ``ready HOST:PORT`` and serves until SIGTERM."""
    try:
        config = parse_flags(StubConfig, argv, prog="python -m bench.stub_target")
        with Path(config.first_tokens).open("a", buffering=1, encoding="utf-8") as first_tokens:
            asyncio.run(_serve(config, first_tokens))
    except PacelineError as error:
        exit_with(error, prog="python -m bench.stub_target")


async def _serve(config: StubConfig, first_tokens: IO[str]) -> None:
    rpc = Plumbing(config).server(TARGET_NAME)
    clock = StepClock(config.step_ms / 1e3)
    StubTargetServicer(clock, tokens_a_step=config.tokens_a_step, first_tokens=first_tokens).add_to(rpc.server)
    async with termination_event() as terminated:
        port = await rpc.start(config.host, config.port)
        await rpc.set_ready(True)
        print(f"ready {config.host}:{port}", flush=True)
        await terminated.wait()
        await rpc.stop(0.0)


if __name__ == "__main__":
    main(sys.argv[1:])
