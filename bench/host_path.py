"""Times the host's share of a target step: the real loop, planner, desks, codecs and lane, over a model that answers at
once.

    OMP_NUM_THREADS=1 python -m bench.host_path --batch 1,32,256 --pause-ms 5

"gap": from a step's result to the launch of the next, when a GPU would stand idle; of it "ask": from the result until
the asks' bytes are on the lane, and "launch": from the draft's bytes on the lane to the launch; "engine": all of the
engine thread's work; "front": what the event loop then does (batches and bulk rows to bytes). Microseconds of CPU a
step, lower quartiles. "plain": no draft; "trees": every request verifies a tree in every step; "off": with a draft, and
decoding plainly. A pause before each result and each answer, as in service, leaves the code cold; --busy as well, where
the thread looks instead of sleeping, as beside a GPU, and then with --rehearse it goes through a round of nobody's
where there is a draft.

Past the feature rows that a step's copy holds, of 64 trees of 8B's size, requests are asked for a turn later with rows
of the pool, which is in "gap", "ask" and "engine".
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles

import numpy as np
from prometheus_client import CollectorRegistry

from bench.host_path_link import DRAFT_LINK, open_lane
from bench.host_path_model import PAGE_SIZE, Stamps, instant_rank, wait_until
from kernels.busy_wait import LOOK
from paceline.admission import pages_for
from paceline.mailbox import Mailbox
from paceline.tree import MAX_NODES
from paceline.types import Rung, SamplingParams, SpeculationDecision, TreeShape
from target_service.codec import encode_batch
from target_service.config import TargetConfig
from target_service.draft_orders import DraftOrders, SyncOrder
from target_service.emission import Emission
from target_service.engine_loop import EngineLoop
from target_service.events import Event, LinkUp, RowsSynced, SessionCode, StreamOpened, Submitted
from target_service.loading import LoadedRank
from target_service.loop_parts import Outlets
from target_service.order_codec import encode_sync
from target_service.rehearsal import Rehearsal
from target_service.rehearsal_time import RehearsalTime
from target_service.request import Request, RequestKey, cost_of
from target_service.service import make_parts

_STREAM = 1
_PROMPT_LEN = 110
_WARM_STEPS = 20
_MOST_TURNS = 8  # of a step; two where asks leave in two messages
_SHAPE = TreeShape(3, 4, 8)
_CONTEXT = 8192
_BUSY_WAIT_S = 1.0  # longer than any pause


@dataclass(frozen=True, slots=True)
class Pauses:
    """Before each result, and each answer. is_busy: the thread looks; rehearses: and goes through rounds meanwhile."""

    result_s: float
    answer_s: float
    is_busy: bool
    rehearses: bool


class HostRun:
    """One batch of one kind, stepped ``repeats`` times."""

    def __init__(self, kind: str, batch: int, repeats: int, *, feature_size: int, pauses: Pauses) -> None:
        tokens_a_step = 3 if kind == "trees" else 1
        max_tokens = (repeats + _WARM_STEPS + batch // 2 + 10) * tokens_a_step + 10
        num_pages = batch * pages_for(_PROMPT_LEN + max_tokens + MAX_NODES, PAGE_SIZE)
        rows = max(512, batch * _PROMPT_LEN)  # all prompts in one step
        self._stamps = Stamps()
        self._kind = kind
        self._batch = batch
        self._pauses = pauses
        rank = instant_rank(
            self._stamps,
            num_pages=num_pages,
            feature_size=0 if kind == "plain" else feature_size,
            max_rows=rows,
            step_s=pauses.result_s,
            sleeps=not pauses.is_busy,
        )
        config = TargetConfig(
            max_running_requests=batch,
            chunked_prefill_size=rows,
            max_rows_per_step=rows,
            speculative_tree_deadline_ms=1e6,
        )
        parts = make_parts(config, rank, context_length=_CONTEXT, registry=CollectorRegistry())
        parts.runner.is_asynchronous = True
        self._mailbox = Mailbox[Event](_BUSY_WAIT_S if pauses.is_busy else 0.0, look=LOOK)
        self._lanes, self._draft = asyncio.run(open_lane(self._mailbox))
        self._rehearsal = asyncio.run(_rehearsal(rank)) if pauses.rehearses and kind != "plain" else None
        self._num_asked = 0
        self._syncs: list[SyncOrder] = []
        self._asked_s: list[float] = []
        self._emissions: list[Emission] = []
        outlets = Outlets(self._take_orders, self._emissions.append)
        rehearsals = None
        if self._rehearsal is not None:  # it sleeps where a service pauses, which would count as CPU time
            rehearsals = RehearsalTime(self._rehearsal.run, parts.times)
        self._loop = EngineLoop(parts, self._mailbox, outlets, rehearsals=rehearsals)
        self.gap_us: list[float] = []
        self.ask_us: list[float] = []
        self.launch_us: list[float] = []
        self.engine_us: list[float] = []
        self.front_us: list[float] = []
        self._mailbox.put(StreamOpened(_STREAM))
        if kind != "plain":
            self._mailbox.put(LinkUp(DRAFT_LINK))
        self._loop.turn(0.0)
        self._mailbox.put(Submitted([self._request(number, max_tokens) for number in range(batch)]))
        self._repeats = repeats

    def run(self) -> dict[str, float]:
        """Microseconds a step of each part."""
        for _ in range(_WARM_STEPS + self._batch // 2):
            self._step()
        for values in (self.gap_us, self.ask_us, self.launch_us, self.engine_us, self.front_us):
            values.clear()
        for _ in range(self._repeats):
            self._step()
        self._draft.close()
        self._mailbox.close()
        if self._rehearsal is not None:
            self._rehearsal.close()
        return {
            "gap": _low(self.gap_us),
            "ask": _low(self.ask_us) if len(self.ask_us) > 1 else 0.0,
            "launch": _low(self.launch_us),
            "engine": _low(self.engine_us),
            "front": _low(self.front_us),
        }

    def _step(self) -> None:
        """Turns until one launches a step: asks whose rows are read from the pool leave in a turn of their own."""
        stamps = self._stamps
        num_launched, known_s = len(stamps.launched_s), stamps.known_s[-1:]
        engine_s = front_s = 0.0
        for _ in range(_MOST_TURNS):
            started_s = stamps.now_s()
            self._loop.turn(0.0)
            engine_s += stamps.now_s() - started_s
            ended_s = time.thread_time()
            front_s += self._serve_front()
            wait_until(time.monotonic() + self._pauses.answer_s, sleeps=not self._pauses.is_busy)
            stamps.outside_s += time.thread_time() - ended_s
            if len(stamps.launched_s) > num_launched:
                break
        else:
            raise AssertionError("no step is due")
        launched_s = stamps.launched_s[-1]
        self.launch_us.append((launched_s - started_s) * 1e6)
        self.engine_us.append(engine_s * 1e6)
        self.front_us.append(front_s * 1e6)
        if known_s:
            self.gap_us.append((launched_s - known_s[0]) * 1e6)
            self.ask_us += [(at_s - known_s[0]) * 1e6 for at_s in self._asked_s if known_s[0] < at_s < launched_s][-1:]
        self._asked_s = [at_s for at_s in self._asked_s if at_s > launched_s]

    def _take_orders(self, orders: dict[str, DraftOrders]) -> bool:
        part = orders[DRAFT_LINK.draft]
        self._num_asked += bool(part.opens or part.releases or part.asks is not None)
        rest = self._lanes.send(orders)
        self._asked_s.append(self._stamps.now_s())
        for left in rest.values():
            self._syncs += left.syncs
        return bool(rest)

    def _serve_front(self) -> float:
        """The event loop's work, whose seconds are returned, and the draft's."""
        started_s = time.thread_time()
        for emission in self._emissions:
            for batch in emission.streams.values():
                encode_batch(batch).SerializeToString()
        for sync in self._syncs:
            encode_sync(sync).SerializeToString()
        front_s = time.thread_time() - started_s
        for sync in self._syncs:
            held_len = sync.base_committed_len + len(sync.verified_id)
            self._mailbox.put(RowsSynced(DRAFT_LINK, sync.session, SessionCode.OK, held_len))
        self._draft.answer(self._num_asked)
        self._num_asked = 0
        self._emissions.clear()
        self._syncs.clear()
        return front_s

    def _request(self, number: int, max_tokens: int) -> Request:
        ladder = (Rung(0, _SHAPE),) if self._kind == "trees" else ()
        draft = "" if self._kind == "plain" else DRAFT_LINK.draft
        cost = cost_of(prompt_len=_PROMPT_LEN, max_tokens=max_tokens, context_length=_CONTEXT, page_size=PAGE_SIZE)
        return Request(
            key=RequestKey(_STREAM, number),
            prompt_ids=np.full(_PROMPT_LEN, 5, np.int32),
            emitted_ids=np.zeros(0, np.int32),
            params=SamplingParams(max_tokens=max_tokens),
            decision=SpeculationDecision(draft, ladder),
            cost=cost,
        )


async def _rehearsal(rank: LoadedRank) -> Rehearsal:
    return Rehearsal(rank)


def _low(values: list[float]) -> float:
    return quantiles(values, n=4)[0]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=lambda text: [int(part) for part in text.split(",")], default=[1, 32, 256])
    parser.add_argument("--kinds", nargs="+", choices=["plain", "trees", "off"], default=["plain", "trees", "off"])
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--feature-size", type=int, default=4096)
    parser.add_argument("--pause-ms", type=float, default=0.0)
    parser.add_argument("--answer-ms", type=float, help="the pause before answers, where it is another")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--rehearse", action="store_true")
    args = parser.parse_args(argv)
    answer_ms = args.pause_ms if args.answer_ms is None else args.answer_ms
    pauses = Pauses(args.pause_ms / 1e3, answer_ms / 1e3, args.busy, args.rehearse)
    print("| kind | batch | gap | ask | launch | engine | front |\n|---|---|---|---|---|---|---|")
    for kind in args.kinds:
        for batch in args.batch:
            parts = HostRun(kind, batch, args.repeats, feature_size=args.feature_size, pauses=pauses).run()
            print(f"| {kind} | {batch} | " + " | ".join(f"{value:.0f}" for value in parts.values()) + " |", flush=True)


if __name__ == "__main__":
    main()
