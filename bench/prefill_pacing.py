"""What prompts cost the streams beside them, with and without a time per token to keep.

    python -m bench.prefill_pacing --target-tpot-ms 0,80 --streams 2 --prompt-tokens 1500

Streams run all the time; prompts of which one token is wanted come one after another. Starts its own services.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from client.aio import AsyncPacelineClient
from client.launcher import Fleet
from client.launcher_config import FleetConfig
from client.placement import DeviceFlags
from client.request import Sampling
from paceline.config import exit_with, flag, parse_flags, require
from paceline.defaults import DEFAULT_HEAD_PATH, DEFAULT_MODEL_PATH
from paceline.errors import PacelineError

_FIRST_ID = 500
_NUM_IDS = 20_000
_ENDLESS = 100_000
_STEADY = 40


@dataclass(frozen=True, slots=True)
class PacingConfig:
    """Measure the time per token of running streams beside long prompts."""

    target_tpot_ms: tuple[str, ...] = flag(("0", "80"), help="values of the router's flag to compare; 0: not paced")
    streams: int = flag(2, help="streams that run all the time")
    prompts: int = flag(4, help="prompts, one after another")
    prompt_tokens: int = flag(1500, help="tokens of each prompt")
    drafts: int = flag(0, help="draft services")
    device: str = flag("cpu", help="device of target and drafts")
    model_path: str = flag(DEFAULT_MODEL_PATH, help="folder of the model")
    head_path: str = flag(DEFAULT_HEAD_PATH, help="folder of the head")
    target_args: str = flag("", help="more flags of the target, in one word")

    def __post_init__(self) -> None:
        for name in ("streams", "prompts", "prompt_tokens"):
            require(getattr(self, name) > 0, name, getattr(self, name), "above 0")

    def fleet(self, target_tpot_ms: str) -> FleetConfig:
        return FleetConfig(
            num_drafts=self.drafts,
            model_path=self.model_path,
            head_path=self.head_path,
            devices=DeviceFlags(device=self.device),
            router_flags=("--stream-interval", "1", "--target-tpot-ms", target_tpot_ms),
            target_flags=tuple(self.target_args.split()),
        )


@dataclass(slots=True)
class _Seen:
    """What a stream gave; times are on the monotonic clock."""

    arrivals: list[tuple[float, int]] = field(default_factory=list)  # of messages, with their tokens
    steady: asyncio.Event = field(default_factory=asyncio.Event)  # once _STEADY messages have come


def main(argv: Sequence[str]) -> None:
    try:
        config = parse_flags(PacingConfig, argv, prog="python -m bench.prefill_pacing")
        print("| target-tpot-ms | ms a token alone | beside prompts: mean | longest wait | prompt's first token s |")
        print("|---|---|---|---|---|")
        asyncio.run(_print_rows(config))  # one loop for all: gRPC's threads keep to the first
    except PacelineError as error:
        exit_with(error, prog="python -m bench.prefill_pacing")


async def _print_rows(config: PacingConfig) -> None:
    for target_tpot_ms in config.target_tpot_ms:
        with Fleet(config.fleet(target_tpot_ms)) as fleet:
            print(await _row(fleet.router_address, config, target_tpot_ms), flush=True)


async def _row(address: str, config: PacingConfig, target_tpot_ms: str) -> str:
    async with AsyncPacelineClient(address) as client:
        prompt = [_FIRST_ID + i % _NUM_IDS for i in range(config.prompt_tokens)]
        await client.generate(prompt, sampling=Sampling(max_tokens=8, ignore_eos=True)).result()  # the first use of all
        seen = [_Seen() for _ in range(config.streams)]
        running = [asyncio.create_task(_stream(client, index, each)) for index, each in enumerate(seen)]
        for each in seen:
            await each.steady.wait()
        began = time.monotonic()
        first_token_s = []
        for index in range(config.prompts):
            answer = client.generate([_FIRST_ID + index, *prompt], sampling=Sampling(max_tokens=1))
            first_token_s.append((await answer.result()).first_token_s)
        ended = time.monotonic()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    alone = [wait for each in seen for wait in _waits(each, 0.0, began)]
    beside = [wait for each in seen for wait in _waits(each, began, ended)]
    num_tokens = sum(count for each in seen for at, count in each.arrivals if began < at <= ended)
    mean_ms = (ended - began) * config.streams / max(1, num_tokens) * 1e3
    cells = [
        target_tpot_ms,
        f"{statistics.median(alone) * 1e3:.1f}",
        f"{mean_ms:.1f}",
        f"{max(beside, default=ended - began) * 1e3:.1f}",
        f"{statistics.median(first_token_s):.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


async def _stream(client: AsyncPacelineClient, index: int, seen: _Seen) -> None:
    sampling = Sampling(max_tokens=_ENDLESS, ignore_eos=True)
    async with client.generate([_FIRST_ID + index] * 8, sampling=sampling) as generation:
        async for delta in generation:
            seen.arrivals.append((time.monotonic(), len(delta.token_ids)))
            if len(seen.arrivals) == _STEADY:
                seen.steady.set()


def _waits(seen: _Seen, began: float, ended: float) -> list[float]:
    """Seconds a token between messages of that time."""
    pairs = zip(seen.arrivals, seen.arrivals[1:], strict=False)
    return [(at - before) / count for (before, _), (at, count) in pairs if count and began < at <= ended]


if __name__ == "__main__":
    main(sys.argv[1:])
