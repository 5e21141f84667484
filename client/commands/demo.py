"""``paceline demo``: everything on this machine, one answer with speculation and the same without."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import paceline.fetch
from client.client import PacelineClient
from client.commands.command import Command, parse
from client.completion import Completion
from client.launcher import Fleet
from client.launcher_config import FleetConfig
from client.placement import DEVICES, DeviceFlags
from client.request import GenerateOptions, Message, Sampling
from paceline.config import flag

_WARM_UP_TOKENS = 8
_COLUMNS = "{:14} {:>7} {:>10} {:>16} {:>13}"


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """Fetch the default model, start all services, stream an answer, compare with plain decoding, stop."""

    prompt: str = flag("Explain in simple words how a bicycle stays upright while it is moving.", help="what to ask")
    max_tokens: int = flag(160, help="new tokens at most")
    dtype: str = flag("bfloat16", help="dtype of the models; float32 is exact", choices=("bfloat16", "float32"))
    device: str = flag("auto", help="cpu or cuda; auto is cuda where there is a GPU", choices=DEVICES)
    log_dir: str = flag("", help="folder for the services' logs; unset: a temporary one")


def main(argv: Sequence[str]) -> int:
    config = parse(DemoConfig, argv, command="demo")
    sampling = Sampling(max_tokens=config.max_tokens, temperature=0.0)
    code = paceline.fetch.main([], prog="paceline demo")
    if code != 0:
        return code
    signal.signal(signal.SIGTERM, _interrupt)
    fleet = Fleet(FleetConfig(dtype=config.dtype, devices=DeviceFlags(config.device), log_dir=config.log_dir))
    print(f"starting router, draft and target ({config.dtype}); logs: {fleet.log_dir}", flush=True)
    with fleet, PacelineClient(fleet.router_address) as client:
        for process in fleet.processes:
            print(f"  {process.name:9} {process.address}  pid {process.pid}")
        for options in (GenerateOptions(), GenerateOptions(speculation=False)):
            warm_up = Sampling(max_tokens=_WARM_UP_TOKENS, temperature=0.0)
            client.generate([Message("user", "Hello")], sampling=warm_up, options=options).result()
        print(f"\n> {config.prompt}\n")
        prompt = [Message("user", config.prompt)]
        with client.generate(prompt, sampling=sampling) as answer:
            for delta in answer:
                print(delta.text, end="", flush=True)
            speculative = answer.result()
        print("\n\nthe same without speculation ...", flush=True)
        plain = client.generate(prompt, sampling=sampling, options=GenerateOptions(speculation=False)).result()
        print("\n".join(comparison(speculative, plain, dtype=config.dtype)))
    print("stopped all services")
    return 0


def comparison(speculative: Completion, plain: Completion, *, dtype: str) -> list[str]:
    """The lines of a table: tokens, speed, accepted length, and whether the tokens are the same."""
    lines = ["", _COLUMNS.format("", "tokens", "tokens/s", "tokens a round", "first token")]
    for name, completion in (("speculative", speculative), ("plain", plain)):
        rate, length = completion.tokens_per_s, completion.stats.mean_accepted_length
        lines.append(
            _COLUMNS.format(
                name,
                len(completion.token_ids),
                f"{rate:.1f}" if rate else "-",
                f"{length or 1.0:.2f}",
                f"{completion.first_token_s * 1e3:.0f} ms",
            )
        )
    if speculative.tokens_per_s and plain.tokens_per_s:
        lines += ["", f"speedup: {speculative.tokens_per_s / plain.tokens_per_s:.2f} x"]
    return [*lines, f"identical tokens: {_identical(speculative, plain, dtype)}", ""]


def _identical(speculative: Completion, plain: Completion, dtype: str) -> str:
    if speculative.token_ids == plain.token_ids:
        return "yes"
    pairs = zip(speculative.token_ids, plain.token_ids, strict=False)
    shorter = min(len(speculative.token_ids), len(plain.token_ids))
    first = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), shorter)
    hint = "; in bfloat16 two tokens can tie, --dtype float32 is exact" if dtype == "bfloat16" else ""
    return f"no, they part at token {first}{hint}"


def _interrupt(*_: object) -> NoReturn:
    print("interrupted: stopping all services", file=sys.stderr)
    raise KeyboardInterrupt


COMMAND = Command("demo", "fetch, start everything, compare with plain decoding, stop", main)
