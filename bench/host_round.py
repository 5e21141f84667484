"""Times all of a speculative round but the models: the real target and draft services in a process each, over loopback.

    python -m bench.host_round --batch 1,32 --step-ms 4.9 --draft-ms 0.85 --rounds-by lane,stream,halves

Rounds travel by a lane, by the gRPC stream, or by a lane in two halves; where several are named, each has its services,
and they take turns. A step of the target and a round of the draft only wait, as a host waits for its GPU; every request
verifies a tree of 16 nodes in every round. --busy: their threads look instead of sleeping, and rehearse, as beside a
GPU; they want a core each. "round": until the router's end of the stream has news of each request;
"host": what is left of it less the two waits, of which halves have one each. Milliseconds: quartiles.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import quantiles
from typing import TYPE_CHECKING, NoReturn

import torch
from prometheus_client import CollectorRegistry

from bench.host_draft_model import HIDDEN, PAGE_SIZE, SHAPE, VOCAB, StampedDrafter
from bench.host_path_model import Stamps, instant_rank
from bench.host_round_link import CONTEXT, FEATURES, MAX_TOKENS, PROMPT_LEN, measure, target_info
from draft_service.batcher import StepLimits
from draft_service.config import DraftConfig
from draft_service.draft_engine import DraftEngine
from draft_service.info import DraftInfo
from draft_service.service import DraftService, LoadedDraft
from draft_service.sessions import SessionTable
from engine.pages import PageAllocator, pages_for
from paceline.threads import share_interpreter
from paceline.types import MAX_SCRATCH_NODES
from target_service.config import TargetConfig
from target_service.halves import Halves
from target_service.service import LoadedTarget, TargetService, make_parts

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_BUSY_WAIT_MS = 10.0
_WAYS = ("lane", "stream", "halves")
_PAGES_A_REQUEST = pages_for(PROMPT_LEN + MAX_TOKENS + MAX_SCRATCH_NODES, PAGE_SIZE)


def serve_draft(ready: Connection, batch: int, round_s: float, *, by_lane: bool, is_busy: bool = False) -> None:
    """The draft's process: sends its port, and serves until it is killed."""
    share_interpreter()
    num_pages = batch * _PAGES_A_REQUEST
    drafter = StampedDrafter(num_pages, max_sessions=batch, round_s=round_s)
    table = SessionTable(PageAllocator(num_pages, PAGE_SIZE), max_sessions=batch, context_length=CONTEXT)
    info = DraftInfo(
        incarnation=1,
        model_name="bench",
        model_fingerprint="",
        head_fingerprint="",
        tokenizer_fingerprint="",
        feature_id=FEATURES,
        vocab_size=VOCAB,
        context_length=CONTEXT,
        feature_size=HIDDEN,
        dtype="bfloat16",
        device="cpu",
        page_size=PAGE_SIZE,
        num_pages=num_pages,
        max_sessions=batch,
        eos_token_ids=(),
    )
    busy_wait_ms = _BUSY_WAIT_MS if is_busy else 0.0
    config = DraftConfig(port=0, max_running_requests=batch, disable_round_lane=not by_lane, busy_wait_ms=busy_wait_ms)
    rehearsal = drafter.rehearsal() if is_busy else None
    engine = DraftEngine(drafter, table, limits=StepLimits(512, 64), clock=time.perf_counter)

    async def serve() -> None:
        draft = LoadedDraft(config, engine, info, torch.device("cpu"), rehearsal)
        service = DraftService(draft, registry=CollectorRegistry())
        ready.send(await service.start())
        await service.failed

    asyncio.run(serve())


class AlwaysSplit(Halves):
    """The step is of no device whose time could be known."""

    @property
    def is_split(self) -> bool:
        return True


def serve_target(ready: Connection, batch: int, step_s: float, *, in_halves: bool, is_busy: bool = False) -> None:
    """The target's process, likewise."""
    share_interpreter()
    rank = instant_rank(
        Stamps(),
        num_pages=batch * _PAGES_A_REQUEST,
        feature_size=HIDDEN,
        max_rows=max(512, batch * SHAPE.num_draft_tokens),
        step_s=step_s,
        sleeps=not is_busy,
    )
    config = TargetConfig(
        port=0,
        busy_wait_ms=_BUSY_WAIT_MS if is_busy else 0.0,
        max_running_requests=batch,
        max_rows_per_step=max(512, batch * SHAPE.num_draft_tokens),
        speculative_tree_deadline_ms=1e6,
    )
    parts = make_parts(config, rank, context_length=CONTEXT, registry=CollectorRegistry())
    parts.runner.is_asynchronous = True
    if in_halves:
        parts = replace(parts, halves=AlwaysSplit(parts.times, enabled=False))

    async def serve() -> None:
        service = TargetService(LoadedTarget(config, target_info(), parts, rank if is_busy else None))
        ready.send(await service.start())
        await service.failed

    asyncio.run(serve())


@contextlib.contextmanager
def serving(serve: Callable[[Connection, int, float], object], batch: int, wait_s: float) -> Iterator[int]:
    """A service in a process of its own; its port."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, batch, wait_s), daemon=True)
    process.start()
    theirs.close()  # so that recv ends where the process does
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()


@contextlib.contextmanager
def serving_pair(
    way: str, batch: int, *, step_s: float, draft_s: float, is_busy: bool = False
) -> Iterator[tuple[int, int]]:
    """A target and its draft, between which rounds travel that way; their ports."""
    serve_one = functools.partial(serve_draft, by_lane=way != "stream", is_busy=is_busy)
    serve_other = functools.partial(serve_target, in_halves=way == "halves", is_busy=is_busy)
    with serving(serve_one, batch, draft_s) as draft, serving(serve_other, batch, step_s) as target:
        yield target, draft


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=lambda text: [int(part) for part in text.split(",")], default=[1, 32])
    parser.add_argument("--step-ms", type=float, default=4.9)
    parser.add_argument("--draft-ms", type=float, default=0.85)
    parser.add_argument("--rounds", type=int, default=400, help="of each turn")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument(
        "--rounds-by", type=lambda text: text.split(","), default=["lane"], help=f"of {', '.join(_WAYS)}"
    )
    parser.add_argument("--busy", action="store_true")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, _end)
    if not set(args.rounds_by) <= set(_WAYS):
        parser.error(f"--rounds-by is {','.join(args.rounds_by)}; write some of {','.join(_WAYS)}")
    print(
        "| batch | rounds by | round 25 % | 50 % | 75 % | host 25 % | 50 % | 75 % |\n|---|---|---|---|---|---|---|---|"
    )
    for batch in args.batch:
        spent_s: dict[str, list[float]] = {way: [] for way in args.rounds_by}
        with contextlib.ExitStack() as stack:
            ports = {
                way: stack.enter_context(
                    serving_pair(way, batch, step_s=args.step_ms / 1e3, draft_s=args.draft_ms / 1e3, is_busy=args.busy)
                )
                for way in args.rounds_by
            }
            for _ in range(args.turns):
                for way, (target, draft) in ports.items():
                    spent_s[way] += asyncio.run(measure(target, draft, batch=batch, rounds=args.rounds))
        for way, rounds_s in spent_s.items():
            round_ms = [part * 1e3 for part in quantiles(rounds_s, n=4)]
            waits = 2 if way == "halves" else 1
            host_ms = [part - waits * (args.step_ms + args.draft_ms) for part in round_ms]
            print(f"| {batch} | {way} | {' | '.join(f'{part:.2f}' for part in (*round_ms, *host_ms))} |", flush=True)


def _end(number: int, _: object) -> NoReturn:
    """Lets go of the services' processes first."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main()
