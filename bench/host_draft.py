"""Times the host's share of a draft's round: the real engine, tables and codecs, over a head that computes nothing.

    OMP_NUM_THREADS=1 python -m bench.host_draft --sessions 1 64 256 --pause-ms 0

"decode": bytes to what the engine takes, as its thread reads them; "apply": into the sessions; "pick": what a step is
to run; "rows": from there to the launch of the committed rows' forward, with the tables of the trees' growth, which
travel along (torch makes the copy here, a GPU's driver there); "grow": to its launch; "commit": the sessions' update,
while the device computes; "answer": from the trees' arrival to the answers; "encode": from there to bytes; "note": what
is left for watchers. "critical" is what a target waits for: all but commit and note. Microseconds of CPU a round: lower
quartiles. Between two rounds others have the caches for --pause-ms, as while a target verifies: with 5 a round of one
session takes up to three times as long as with 0.
"""

from __future__ import annotations

import argparse
import gc
import os
import select
import time
from collections.abc import Sequence
from statistics import quantiles

import numpy as np

from bench.host_draft_codec import decoder, encode, round_message
from bench.host_draft_model import HIDDEN, PAGE_SIZE, SHAPE, StampedDrafter
from draft_service.batcher import StepLimits
from draft_service.draft_engine import DraftEngine
from draft_service.events import Opening, RoundMessage
from draft_service.replies import Replies
from draft_service.sessions import SessionTable
from engine.pages import PageAllocator, pages_for
from paceline.rounds import ExtendColumns, RawTensor
from paceline.types import MAX_SCRATCH_NODES, SamplingParams

_WARM_UPS = 5
_ROWS = 2  # committed in a round
_STREAM, _TARGET = 1, 7
_CONTEXT = 8192
PHASES = ("decode", "apply", "pick", "rows", "grow", "commit", "answer", "encode", "note")
_CRITICAL = ("decode", "apply", "pick", "rows", "grow", "answer", "encode")


class HostRun:
    """Sessions of one target that all ask for a tree in every round."""

    def __init__(self, num_sessions: int, rounds: int, *, pause_s: float = 0.0, rehearse_s: float = 0.0) -> None:
        """rehearse_s: between two rehearsals in a pause, which is none of sleep then; 0: there are none."""
        max_len = 110 + _ROWS * (rounds + 1)
        num_pages = num_sessions * pages_for(max_len + MAX_SCRATCH_NODES, PAGE_SIZE)
        allocator = PageAllocator(num_pages, PAGE_SIZE)
        self._drafter = StampedDrafter(num_pages, max_sessions=num_sessions)
        table = SessionTable(allocator, max_sessions=num_sessions, context_length=_CONTEXT)
        self._engine = DraftEngine(self._drafter, table, limits=StepLimits(512, 64), clock=time.perf_counter)
        openings = tuple(Opening(number, max_len, SamplingParams()) for number in range(num_sessions))
        opened = RoundMessage(
            stream=_STREAM, target=_TARGET, openings=openings, extend=None, releases=(), arrived_s=0.0
        )
        self._engine.apply([opened], Replies())
        self._decoder = decoder(stream=_STREAM, target=_TARGET)
        self._num_sessions = num_sessions
        self._pause_s = pause_s
        self._rehearse_s = rehearse_s
        self._rehearsal = self._drafter.rehearsal()
        self._rounds = rounds

    def run(self) -> dict[str, float]:
        """Microseconds of each phase."""
        spent: dict[str, list[float]] = {phase: [] for phase in PHASES}
        gc.collect()
        gc.freeze()
        for round_ in range(1, self._rounds + 1):
            self._wait()
            phases = self._round(round_)
            if round_ > _WARM_UPS:
                for phase, seconds in phases.items():
                    spent[phase].append(seconds * 1e6)
        return {phase: quantiles(values, n=4)[0] for phase, values in spent.items()}

    def _wait(self) -> None:
        if not self._rehearse_s:
            time.sleep(self._pause_s)
            return
        ear, bell = os.pipe()
        now_s = time.monotonic()
        end_s, rehearse_s = now_s + self._pause_s, now_s + self._rehearse_s
        while now_s < end_s:
            select.select([ear], (), (), 0.0)
            now_s = time.monotonic()
            if now_s >= rehearse_s:
                self._rehearsal.run()
                rehearse_s = now_s + self._rehearse_s
        os.close(ear)
        os.close(bell)

    def _round(self, round_: int) -> dict[str, float]:
        raw = round_message(self._columns(round_), _TARGET)
        stamps, clock = self._drafter.stamps_s, time.thread_time
        start = clock()
        event = self._decoder.parse(raw)
        decoded = clock()
        self._engine.apply([event], Replies())
        applied = clock()
        stamps.clear()
        answered: list[tuple[float, Replies]] = []
        self._engine.step(lambda replies: answered.append((clock(), replies)))
        stepped = clock()
        (answer_s, replies), *_ = answered
        encoding = clock()
        encode(replies.by_stream[_STREAM])
        encoded = clock()
        picked, launched, grown, asked = stamps[:4]
        return {
            "decode": decoded - start,
            "apply": applied - decoded,
            "pick": picked - applied,
            "rows": launched - picked,
            "grow": grown - launched,
            "commit": asked - grown,
            "answer": answer_s - asked,
            "encode": encoded - encoding,
            "note": stepped - answer_s,
        }

    def _columns(self, round_: int) -> ExtendColumns:
        size = self._num_sessions
        rows = size * _ROWS

        def all_of(value: int) -> np.ndarray:
            return np.full(size, value, np.int64)

        return ExtendColumns(
            session=np.arange(size, dtype=np.uint64),
            round=all_of(round_),
            base_committed_len=all_of(_ROWS * (round_ - 1)),
            num_tokens=all_of(_ROWS),
            propose=np.ones(size, np.bool_),
            num_steps=all_of(SHAPE.num_steps),
            eagle_topk=all_of(SHAPE.eagle_topk),
            num_draft_tokens=all_of(SHAPE.num_draft_tokens),
            min_path_permille=all_of(0),
            verified_id=np.full(rows, 7, np.int32),
            hidden_states=RawTensor("bfloat16", (rows, HIDDEN), bytes(2 * rows * HIDDEN)),
        )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--pause-ms", type=float, default=0.0)
    parser.add_argument("--rehearse-ms", type=float, default=0.0, help="look without sleep, with so many between two")
    args = parser.parse_args(argv)
    print(f"us of CPU a round, {_ROWS} rows of {HIDDEN} bf16 values and a tree of {SHAPE.num_draft_tokens} a session")
    print(f"| sessions | {' | '.join(PHASES)} | critical | all |\n|{'---|' * (len(PHASES) + 3)}")
    for sessions in args.sessions:
        pauses = {"pause_s": args.pause_ms / 1e3, "rehearse_s": args.rehearse_ms / 1e3}
        us = HostRun(sessions, _WARM_UPS + args.rounds, **pauses).run()
        sums = [sum(us[phase] for phase in phases) for phases in (_CRITICAL, PHASES)]
        figures = [*(us[phase] for phase in PHASES), *sums]
        print(f"| {sessions} | {' | '.join(f'{figure:.0f}' for figure in figures)} |", flush=True)


if __name__ == "__main__":
    main()
