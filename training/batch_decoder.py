"""BatchDecoder: hundreds of sequences through the target at once, a step a token, refilled as they end."""

from __future__ import annotations

import numpy as np
import torch

from engine.pages import PageAllocator, PageTable, pages_for
from engine.plan import StepBuilder, TreeRows
from engine.target_model import TargetModel
from kernels.ops import SamplingBatch, WalkLimits
from training.conversation import Conversation
from training.seats import SeatRules, Seats
from training.sources import Source

_PAGE_SIZE = 16
_GRAPH_CHUNK_ROWS = 256  # rows beside the seats' own that a captured step has for openings
_EAGER_CHUNK_ROWS = 2048
_MOST_SEATS = 2048
_CPU_SEATS = 16
_POOL_SHARE = 0.6  # of a GPU's free memory; logits and captured steps take some of the rest


class BatchDecoder:
    """Numbers are begun in order, and end in any. Each seat owns its pages, so that none can run out.

    A step takes one row of every seat that decodes, and openings in chunks beside them.
    """

    def __init__(self, target: TargetModel, source: Source, rules: SeatRules, *, num_seats: int, first: int) -> None:
        """first: the number to begin with. On a GPU it captures the steps. Raises ConfigError for too little memory."""
        self._target = target
        self._source = source
        self._seats = Seats(num_seats, rules)
        self._next = first
        self._has_more = True
        self._cache = target.make_cache(num_seats * pages_for(rules.capacity, _PAGE_SIZE), _PAGE_SIZE)
        allocator = PageAllocator(self._cache.num_pages, _PAGE_SIZE)
        self._tables = [PageTable(allocator) for _ in range(num_seats)]
        for table in self._tables:
            table.reserve(rules.capacity)
        # A fresh pool hands its pages out in order, so that a seat's are consecutive.
        self._first_page = np.array([table.pages[0] for table in self._tables])
        assert all(table.pages[-1] - table.pages[0] + 1 == len(table.pages) for table in self._tables)
        target.ops.prepare_walk(WalkLimits(num_seats, num_seats, target.config.vocab_size))
        self._max_rows = num_seats + _EAGER_CHUNK_ROWS
        if target.ops.supports_graphs:
            self._max_rows = num_seats + _GRAPH_CHUNK_ROWS
            target.capture(self._cache, self._max_rows)

    @property
    def is_done(self) -> bool:
        """Whether the source is used up and every sequence has ended."""
        return not self._has_more and not self._seats.pending.any()

    @torch.inference_mode()
    def step(self) -> tuple[int, list[Conversation]]:
        """One forward of all seats, where any has work. Returns how many tokens it drew, and what ended."""
        self._refill()
        seats = self._seats
        pending = seats.pending
        single = np.flatnonzero(pending == 1)
        builder = StepBuilder(_PAGE_SIZE)
        drawn = np.array(self._add_chunks(builder, pending, self._max_rows - len(single)), np.int64)
        if len(single):
            builder.add_trees(self._rows_of(single))
            seats.fed[single] += 1
        drawn = np.concatenate([drawn, single])
        plan = builder.build()
        if plan.num_rows == 0:
            return 0, []
        output = self._target.step(plan, self._cache)
        if len(drawn) == 0:
            return 0, []
        assert output.logits is not None
        walk = self._target.ops.start_walk(output.logits, plan.trees, self._sampling(drawn)).result()
        return len(drawn), seats.append(drawn, walk.verified_id)

    def _refill(self) -> None:
        for seat in self._seats.idle.tolist() if self._has_more else ():
            opening = self._source.opening(self._next)
            if opening is None:
                self._has_more = False
                return
            self._seats.begin(seat, self._next, opening)
            self._next += 1

    def _add_chunks(self, builder: StepBuilder, pending: np.ndarray, room: int) -> list[int]:
        """Tokens that need no drawing, the oldest sequences first. Returns the seats whose last one is among them."""
        seats, complete = self._seats, []
        waiting = np.flatnonzero(pending > 1)
        for seat in waiting[np.argsort(seats.number[waiting])].tolist():
            if room == 0:
                break
            start, size = int(seats.fed[seat]), min(int(pending[seat]), room)
            is_last = size == pending[seat]
            tokens = seats.tokens[seat, start : start + size]
            builder.add_chunk(self._tables[seat], tokens, start, sample=is_last)
            seats.fed[seat] += size
            room -= size
            if is_last:
                complete.append(seat)
        return complete

    def _rows_of(self, seats: np.ndarray) -> TreeRows:
        """A tree of one node for each seat."""
        fed = self._seats.fed[seats]
        counts = fed // _PAGE_SIZE + 1
        ends = np.cumsum(counts)
        page_ids = np.arange(ends[-1]) + np.repeat(self._first_page[seats] - ends + counts, counts)
        return TreeRows(
            tokens=self._seats.tokens[seats, fed],
            parents=np.full(len(seats), -1, np.int32),
            num_nodes=np.ones(len(seats), np.int64),
            committed_len=fed,
            page_ids=page_ids.astype(np.int32),
        )

    def _sampling(self, seats: np.ndarray) -> SamplingBatch:
        return SamplingBatch(
            seed=self._seats.seed[seats],
            temperature=self._seats.temperature[seats],
            top_k=np.zeros(len(seats), np.int32),
            top_p=np.ones(len(seats), np.float32),
            min_p=np.zeros(len(seats), np.float32),
        )


def fitting_seats(target: TargetModel, capacity: int) -> int:
    """How many sequences of capacity tokens to decode together."""
    if target.device.type != "cuda":
        return _CPU_SEATS
    free, _ = torch.cuda.mem_get_info(target.device)
    return max(1, min(_MOST_SEATS, int(_POOL_SHARE * free) // (capacity * target.cache_bytes_per_token)))
