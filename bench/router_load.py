"""What a router costs at many streams: CPU of its process a client message and a token, before a target on a clock.

    python -m bench.router_load --streams 256 --step-ms 17 --tokens-a-step 1 --stream-intervals 1,8

The target emits tokens for every running request each step; clients, router and target are processes of their own.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.load_generator import LoadGenerator, processes_for
from bench.outcome import Run
from bench.workload import PLAIN, Variant, Workload
from client.launcher import ROUTER_MODULE
from client.process import ServiceProcess
from client.request import Sampling
from paceline.config import exit_with, flag, parse_flags, require
from paceline.errors import PacelineError

_START_S = 30.0
_PROMPTS = tuple(f"Prompt number {i} of the router's load." for i in range(64))


@dataclass(frozen=True, slots=True)
class RouterLoadConfig:
    """Measure the router's CPU time at many streams."""

    streams: int = flag(256, help="requests in flight")
    requests: int = flag(1024, help="requests in all")
    max_tokens: int = flag(128, help="tokens of a request")
    step_ms: float = flag(17.0, help="milliseconds of a step of the target")
    tokens_a_step: int = flag(1, help="tokens of each request in a step")
    client_processes: int = flag(0, help="processes that send; 0: by streams and cores")
    stream_intervals: tuple[str, ...] = flag(("1", "8"), help="values of the router's --stream-interval to compare")
    router_args: tuple[str, ...] = flag((), help="more flags of the router")

    def __post_init__(self) -> None:
        for name in ("streams", "requests", "max_tokens", "tokens_a_step", "step_ms"):
            require(getattr(self, name) > 0, name, getattr(self, name), "above 0")


def main(argv: Sequence[str]) -> None:
    try:
        config = parse_flags(RouterLoadConfig, argv, prog="python -m bench.router_load")
        print(f"{config.streams} streams, steps of {config.step_ms:g} ms with {config.tokens_a_step} tokens a stream")
        print("| stream-interval | tokens/s | messages/s | router: cores | us a message | us a token | client: cores |")
        print("|---|---|---|---|---|---|---|")
        with tempfile.TemporaryDirectory() as logs:
            for interval in config.stream_intervals:
                print(_row(config, interval, Path(logs)), flush=True)
    except PacelineError as error:
        exit_with(error, prog="python -m bench.router_load")


def _row(config: RouterLoadConfig, interval: str, logs: Path) -> str:
    flags = (str(config.step_ms), str(config.tokens_a_step))
    with _started(
        ServiceProcess("target", "bench.stub_target_servicer", flags=flags, port=0, log_path=logs / "t.log")
    ) as target:
        router_flags = ["--targets", target.address, "--stream-interval", interval, *config.router_args]
        router = ServiceProcess("router", ROUTER_MODULE, flags=router_flags, port=0, log_path=logs / "r.log")
        with _started(router):
            sampling = Sampling(max_tokens=config.max_tokens, temperature=0.0, seed=0)
            workload = Workload(router.address, _PROMPTS, (sampling,) * len(_PROMPTS))
            num_processes = config.client_processes or processes_for(config.streams)
            with LoadGenerator(workload, num_processes) as generator:
                _run(
                    generator, config, min(config.streams, config.requests)
                )  # connections, and the first use of all code
                before_s = router.usage().cpu_s
                run = _run(generator, config, config.requests)
                cpu_s = router.usage().cpu_s - before_s
    messages = sum(len(outcome.arrivals) for outcome in run.outcomes)
    cells = [
        interval,
        f"{run.rate:.0f}",
        f"{messages / run.seconds:.0f}",
        f"{cpu_s / run.seconds:.2f}",
        f"{cpu_s / messages * 1e6:.1f}",
        f"{cpu_s / run.output_tokens * 1e6:.1f}",
        f"{run.client_busy or 0:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def _run(generator: LoadGenerator, config: RouterLoadConfig, num_requests: int) -> Run:
    run = generator.run(
        Variant(PLAIN), num_requests, concurrency=config.streams, repeat=0, on_progress=lambda started: None
    )
    if run.errors:
        raise PacelineError(f"{len(run.errors)} requests failed, the first with {run.errors[0]}")
    return run


@contextlib.contextmanager
def _started(process: ServiceProcess) -> Iterator[ServiceProcess]:
    process.start()
    try:
        process.wait_ready(time.monotonic() + _START_S)
        yield process
    finally:
        process.stop(grace_s=1.0)


if __name__ == "__main__":
    main(sys.argv[1:])
