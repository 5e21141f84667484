"""``paceline bench router``: what a router costs, and what metrics, traces and mTLS cost at a router or a whole fleet.

    paceline bench router --streams 256 --step-ms 25 --stream-intervals 1,8
    paceline bench router --with-model --streams 4 --requests 16

Without ``--with-model`` the target has no model and emits tokens for every request on a clock. All variants run side by
side and take turns; clients, router and target are processes of their own.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.load_generator import processes_for
from bench.prompts import load_prompts
from bench.router_dress import DIRECT, DRESSES, Dress, dresses
from bench.router_report import first_token_report, first_token_table, table, variants_report
from bench.router_rig import Rig, StubSettings, fleet_rig, stub_rig
from bench.router_runs import Work, first_token_runs, load_runs
from bench.workload import PLAIN, SPECULATIVE, Variant
from bench.workload_flags import DEFAULT_PROMPTS
from bench.writing import check_writable
from paceline.config import flag, parse_flags, require
from paceline.errors import ConfigError
from paceline.threads import num_cores

_AT_ONCE: Mapping[str, Any] = {"stream_interval": 1, "step_ms": 0.0}


@dataclass(frozen=True, slots=True)
class RouterLoadConfig:
    """Measure the router's CPU time, and what metrics, traces and mTLS cost.

    Raises ConfigError.
    """

    variants: tuple[str, ...] = flag(
        (), help=f"of {','.join(DRESSES)}: clients at the target, nothing on, metrics and traces, mTLS; unset: all"
    )
    with_model: bool = flag(False, help="real target and draft with the default models in place of the clock")
    streams: int = flag(256, help="requests in flight")
    requests: int = flag(1024, help="requests of a run")
    max_tokens: int = flag(128, help="tokens of a request")
    step_ms: tuple[str, ...] = flag(("25",), help="milliseconds of a step, one or more; 0: as fast as they are taken")
    tokens_a_step: int = flag(1, help="tokens of each request in a step")
    stream_intervals: tuple[str, ...] = flag(("8",), help="values of the router's --stream-interval, one or more")
    first_token_requests: int = flag(
        100, help="without a model: requests, one by one, of a run that times first tokens; 0: none"
    )
    repeat: int = flag(3, help="runs of each variant, interleaved")
    client_processes: int = flag(0, help="processes that send; 0: by streams and cores")
    router_args: tuple[str, ...] = flag((), help="more flags of the router")
    json: str = flag("", help="file for the results; - is stdout")

    def __post_init__(self) -> None:
        for name in ("streams", "requests", "max_tokens", "tokens_a_step", "repeat"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("first_token_requests", "client_processes"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        if unknown := set(self.variants) - set(DRESSES):
            raise ConfigError(f"--variants names {', '.join(sorted(unknown))}; there are {', '.join(DRESSES)}")
        if self.with_model and DIRECT in self.variants:
            raise ConfigError(f"--variants names {DIRECT}, but a target with a model answers no clients: leave it out")
        for text in self.stream_intervals:
            require(text.isdecimal() and int(text) > 0, "stream_intervals", text, "a number, at least 1")
        for text in self.step_ms:
            require(_is_time(text), "step_ms", text, "milliseconds, 0 or more")

    @property
    def names(self) -> tuple[str, ...]:
        """Of the variants."""
        return self.variants or DRESSES[self.with_model :]

    def groups(self) -> Iterator[dict[str, Any]]:
        """What the variants of one comparison share."""
        for interval in self.stream_intervals:
            if self.with_model:
                yield {"stream_interval": int(interval)}
            else:
                yield from ({"stream_interval": int(interval), "step_ms": float(step)} for step in self.step_ms)

    def work(self) -> Work:
        processes = self.client_processes or processes_for(self.streams)
        prompts = tuple(load_prompts(DEFAULT_PROMPTS)) if self.with_model else self._prompts(self.requests)
        variant = Variant(SPECULATIVE if self.with_model else PLAIN)
        return Work(prompts, self.max_tokens, variant, self.streams, self.requests, processes)

    def first_token_work(self) -> Work:
        return Work(self._prompts(self.first_token_requests), 1, Variant(PLAIN), 1, self.first_token_requests, 1)

    def _prompts(self, num_requests: int) -> tuple[str, ...]:
        """For all runs, the uncounted first one included: none comes twice, for routers keep what they tokenised."""
        num_prompts = (self.repeat + 1) * num_requests
        return tuple(f"Prompt number {i} of the router's load." for i in range(num_prompts))


def main(argv: Sequence[str]) -> int:
    """Prints the report; raises the typed errors."""
    config = parse_flags(RouterLoadConfig, argv, prog="paceline bench router")
    check_writable(config.json, "json")
    shows = config.json != "-"
    groups, first_tokens = [], []
    with tempfile.TemporaryDirectory(prefix="paceline-router-") as folder, dresses(config.names, Path(folder)) as made:
        for i, group in enumerate(config.groups()):
            with _rigs(config, made, group, Path(folder) / str(i)) as rigs:
                variants = variants_report(load_runs(rigs, config.work(), repeat=config.repeat))
            groups.append({**group, "variants": variants})
            if shows:
                print(f"\n{_title(config, group)}\n\n{table(variants)}", flush=True)
        if config.first_token_requests and not config.with_model:
            with _rigs(config, made, _AT_ONCE, Path(folder) / "first-tokens") as rigs:
                work = config.first_token_work()
                first_tokens = first_token_report(first_token_runs(rigs, work, repeat=config.repeat))
            if shows:
                print(f"\nOne request at a time, to a target that answers at once\n\n{first_token_table(first_tokens)}")
    flags = {name: getattr(config, name) for name in ("with_model", "streams", "requests", "max_tokens", "repeat")}
    text = json.dumps({**flags, "cores": num_cores(), "groups": groups, "first_tokens": first_tokens}, indent=2)
    if not shows:
        print(text)
    elif config.json:
        Path(config.json).write_text(text + "\n", encoding="utf-8")
    return 0


@contextlib.contextmanager
def _rigs(config: RouterLoadConfig, made: Sequence[Dress], group: Mapping[str, Any], logs: Path) -> Iterator[list[Rig]]:
    """All variants at once."""
    logs.mkdir()
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(_rig(config, dress, group, logs)) for dress in made]


def _rig(
    config: RouterLoadConfig, dress: Dress, group: Mapping[str, Any], logs: Path
) -> contextlib.AbstractContextManager[Rig]:
    router_flags = ("--stream-interval", str(group["stream_interval"]), *config.router_args)
    if config.with_model:
        return fleet_rig(dress, router_flags, logs)
    return stub_rig(dress, StubSettings(group["step_ms"], config.tokens_a_step, router_flags), logs)


def _title(config: RouterLoadConfig, group: Mapping[str, Any]) -> str:
    step = "" if config.with_model else f", steps of {group['step_ms']:g} ms with {config.tokens_a_step} tokens each"
    return f"{config.streams} streams{step}, --stream-interval {group['stream_interval']}"


def _is_time(text: str) -> bool:
    try:
        return float(text) >= 0
    except ValueError:
        return False
