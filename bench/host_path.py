"""Times the host's share of a target step: the real loop, planner, desks and codecs, over a model that answers at once.

    OMP_NUM_THREADS=1 python -m bench.host_path --batch 1,32,256

"gap": from a step's result to the launch of the next, when a GPU would stand idle; "orders": from a result to the asks
in the hands of the drafts' links; "engine": all of the engine thread's work; "front": what the event loop then does
(batches and orders to bytes, trees from bytes). Microseconds a step, lower quartiles. "plain": no draft; "trees": every
request verifies a tree in every step; "off": with a draft, and decoding plainly.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from statistics import quantiles

import numpy as np
from prometheus_client import CollectorRegistry

from bench.host_path_model import PAGE_SIZE, VOCAB_SIZE, Stamps, instant_rank
from paceline.admission import pages_for
from paceline.mailbox import Mailbox
from paceline.round_codec import encode_verify
from paceline.rounds import ExtendColumns, VerifyColumns
from paceline.tree import MAX_NODES
from paceline.types import Rung, SamplingParams, SpeculationDecision, TreeShape
from target_service.codec import encode_batch
from target_service.config import TargetConfig
from target_service.draft_codec import decode_trees, encode_orders, encode_sync
from target_service.draft_orders import DraftOrders
from target_service.emission import Emission
from target_service.engine_loop import EngineLoop
from target_service.events import (
    Event,
    LinkEpoch,
    LinkUp,
    RowsSynced,
    SessionAnswer,
    SessionCode,
    SessionsAnswered,
    StreamOpened,
    Submitted,
)
from target_service.loop_parts import Outlets
from target_service.request import Request, RequestKey, cost_of
from target_service.service import make_parts

_DRAFT = "draft:1"
_STREAM = 1
_PROMPT_LEN = 110
_WARM_STEPS = 20
_SHAPE = TreeShape(3, 4, 8)
_PARENTS = np.array([-1, 0, 0, 1, 1, 2, 4, 4], np.int32)
_CONTEXT = 8192


class HostRun:
    """One batch of one kind, stepped ``repeats`` times."""

    def __init__(self, kind: str, batch: int, repeats: int, *, feature_size: int) -> None:
        tokens_a_step = 3 if kind == "trees" else 1
        max_tokens = (repeats + _WARM_STEPS + batch // 2 + 10) * tokens_a_step + 10
        num_pages = batch * pages_for(_PROMPT_LEN + max_tokens + MAX_NODES, PAGE_SIZE)
        rows = max(512, batch * _PROMPT_LEN)  # all prompts in one step
        self._stamps = Stamps()
        self._kind = kind
        self._batch = batch
        rank = instant_rank(
            self._stamps,
            num_pages=num_pages,
            feature_size=0 if kind == "plain" else feature_size,
            max_rows=rows,
        )
        config = TargetConfig(
            max_running_requests=batch,
            chunked_prefill_size=rows,
            max_rows_per_step=rows,
            speculative_tree_deadline_ms=1e6,
        )
        parts = make_parts(config, rank, context_length=_CONTEXT, registry=CollectorRegistry())
        parts.runner.is_asynchronous = True
        self._mailbox = Mailbox[Event]()
        self._orders: list[DraftOrders] = []
        self._orders_s: list[float] = []
        self._emissions: list[Emission] = []
        self._loop = EngineLoop(parts, self._mailbox, Outlets(self._take_orders, self._emissions.append))
        self.front_us: list[float] = []
        self.engine_us: list[float] = []
        self._mailbox.put(StreamOpened(_STREAM))
        if kind != "plain":
            self._mailbox.put(LinkUp(LinkEpoch(_DRAFT, 1)))
        self._loop.turn(0.0)
        self._mailbox.put(Submitted([self._request(number, max_tokens) for number in range(batch)]))
        self._repeats = repeats

    def run(self) -> dict[str, float]:
        """Microseconds a step of each part."""
        for _ in range(_WARM_STEPS + self._batch // 2):
            self._step()
        first = len(self._stamps.launched_s)
        del self._orders_s[:], self.front_us[:], self.engine_us[:]
        gaps, orders = [], []
        for _ in range(self._repeats):
            self._step()
            spent_s = self._outside_s
            launched_s, known_s = self._stamps.launched_s[-1], self._stamps.known_s[-2]
            gaps.append((launched_s - known_s - spent_s) * 1e6)
            if self._orders_s and self._orders_s[-1] > self._stamps.known_s[-1]:
                orders.append((self._orders_s[-1] - self._stamps.known_s[-1]) * 1e6)
        assert len(self._stamps.launched_s) == first + self._repeats, "a turn without a step"
        return {
            "gap": _low(gaps),
            "orders": _low(orders) if len(orders) > 1 else 0.0,
            "engine": _low(self.engine_us),
            "front": _low(self.front_us),
        }

    def _step(self) -> None:
        started_s = time.thread_time()
        self._loop.turn(0.0)
        ended_s = time.thread_time()
        self._serve_front()
        served_s = time.thread_time()
        self.engine_us.append((ended_s - started_s) * 1e6)
        self._outside_s = getattr(self, "_next_outside_s", 0.0)
        self._next_outside_s = served_s - ended_s

    def _take_orders(self, orders: dict[str, DraftOrders]) -> bool:
        self._orders.append(orders[_DRAFT])
        self._orders_s.append(time.thread_time())
        return True

    def _serve_front(self) -> None:
        """The event loop's work and, not timed, the draft's."""
        started_s = time.thread_time()
        for emission in self._emissions:
            for batch in emission.streams.values():
                encode_batch(batch).SerializeToString()
        if self._orders:
            message = encode_orders(self._orders, 1)
            if message is not None:
                message.SerializeToString()
            for part in self._orders:
                for sync in part.syncs:
                    encode_sync(sync).SerializeToString()
        front_s = time.thread_time() - started_s
        for part in self._orders:
            front_s += self._answer(part)
        self._emissions.clear()
        self._orders.clear()
        self.front_us.append(front_s * 1e6)

    def _answer(self, orders: DraftOrders) -> float:
        at = LinkEpoch(_DRAFT, 1)
        if orders.opens:
            answers = [SessionAnswer(order.session, SessionCode.OK, 0, 0) for order in orders.opens]
            self._mailbox.put(SessionsAnswered(at, answers))
        for sync in orders.syncs:
            held_len = sync.base_committed_len + len(sync.verified_id)
            self._mailbox.put(RowsSynced(at, sync.session, SessionCode.OK, held_len))
        if orders.extend is None:
            return 0.0
        message = encode_verify(_trees(orders.extend), 1)
        started_s = time.thread_time()
        self._mailbox.put(decode_trees(message, VOCAB_SIZE, at=at))
        return time.thread_time() - started_s

    def _request(self, number: int, max_tokens: int) -> Request:
        ladder = (Rung(0, _SHAPE),) if self._kind == "trees" else ()
        draft = "" if self._kind == "plain" else _DRAFT
        cost = cost_of(prompt_len=_PROMPT_LEN, max_tokens=max_tokens, context_length=_CONTEXT, page_size=PAGE_SIZE)
        return Request(
            key=RequestKey(_STREAM, number),
            prompt_ids=np.full(_PROMPT_LEN, 5, np.int32),
            emitted_ids=np.zeros(0, np.int32),
            params=SamplingParams(max_tokens=max_tokens),
            decision=SpeculationDecision(draft, ladder),
            cost=cost,
        )


def _low(values: list[float]) -> float:
    return quantiles(values, n=4)[0]


def _trees(extend: ExtendColumns) -> VerifyColumns:
    size, nodes = len(extend.session), len(_PARENTS)
    tokens = np.tile(np.arange(100, 100 + nodes, dtype=np.int32), (size, 1))
    tokens[:, 0] = extend.verified_id[np.cumsum(extend.num_tokens) - 1]
    return VerifyColumns(
        session=extend.session,
        round=extend.round,
        base_committed_len=extend.base_committed_len + extend.num_tokens,
        num_tokens=np.full(size, nodes, np.int64),
        draft_token=tokens.reshape(-1),
        parents=np.tile(_PARENTS, size),
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=lambda text: [int(part) for part in text.split(",")], default=[1, 32, 256])
    parser.add_argument("--kinds", nargs="+", choices=["plain", "trees", "off"], default=["plain", "trees", "off"])
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--feature-size", type=int, default=576)
    args = parser.parse_args(argv)
    print("| kind | batch | gap | orders | engine | front |\n|---|---|---|---|---|---|")
    for kind in args.kinds:
        for batch in args.batch:
            parts = HostRun(kind, batch, args.repeats, feature_size=args.feature_size).run()
            print(f"| {kind} | {batch} | " + " | ".join(f"{value:.0f}" for value in parts.values()) + " |", flush=True)


if __name__ == "__main__":
    main()
