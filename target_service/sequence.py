"""Sequence: one request's tokens, pages and progress."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from engine.pages import PageTable
from paceline.types import FinishReason, SamplingParams, SpeculationDecision
from target_service.draft_session import DraftSession
from target_service.request import Request, RequestKey
from target_service.speculation_stats import RequestStats


class Phase(enum.Enum):
    """What a sequence needs next."""

    PREFILL = "prefill"  # tokens up to prefill_len have no KV yet
    DECODE = "decode"  # one token, the newest, has no KV yet


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of tokens that a step gave."""

    kept: list[int]  # a stop token is the last of them
    finish: FinishReason | None  # why the request ends, or None


class Sequence:
    """Owns the pages of one request from admission until ``close``.

    committed_len counts the tokens whose KV is in the pool. In decode the newest token lies at position
    committed_len and has none yet. KV that an accepted path left out of place moves before the next step
    (``moves``), and until then ``slots`` names where it is.
    """

    __slots__ = (
        "committed_len",
        "decision",
        "draft",
        "key",
        "last_step",
        "limit",
        "moves",
        "num_tokens",
        "params",
        "path_base",
        "path_rows",
        "prefill_len",
        "prompt_len",
        "stats",
        "stop_ids",
        "table",
        "tokens",
    )

    def __init__(self, request: Request, table: PageTable, *, limit: int, eos_token_ids: tuple[int, ...]) -> None:
        """limit: tokens that the request may hold, prompt and output, more than prompt and emitted tokens."""
        self.key: RequestKey = request.key
        self.params: SamplingParams = request.params
        self.decision: SpeculationDecision = request.decision
        self.table = table
        self.prompt_len = len(request.prompt_ids)
        self.prefill_len = self.prompt_len + len(request.emitted_ids)
        self.limit = limit
        self.tokens = np.zeros(limit, np.int32)
        self.tokens[: self.prompt_len] = request.prompt_ids
        self.tokens[self.prompt_len : self.prefill_len] = request.emitted_ids
        self.num_tokens = self.prefill_len
        self.committed_len = 0
        self.stop_ids = frozenset(request.params.stop_token_ids)
        if not request.params.ignore_eos:
            self.stop_ids |= frozenset(eos_token_ids)
        self.moves: tuple[np.ndarray, np.ndarray] | None = None  # source and destination slots, int64
        self.draft: DraftSession | None = None
        self.stats = RequestStats()
        self.last_step = 0  # the step that it last took part in
        self.path_base = 0  # committed_len before that step
        self.path_rows: np.ndarray | None = None  # int32: the step's rows that it committed; None after a chunk

    @property
    def phase(self) -> Phase:
        return Phase.PREFILL if self.committed_len < self.prefill_len else Phase.DECODE

    @property
    def is_open(self) -> bool:
        """Until ``close``."""
        return bool(self.table.pages)

    @property
    def num_emitted(self) -> int:
        """Output tokens so far, those of earlier attempts included."""
        return self.num_tokens - self.prompt_len

    @property
    def root_token(self) -> int:
        """The token at position committed_len."""
        return int(self.tokens[self.committed_len])

    def append(self, token_ids: list[int]) -> Appended:
        """Appends tokens one by one up to the first that ends the request; the rest is dropped.

        A stop token at the last allowed place is a stop.
        """
        for count, token in enumerate(token_ids, 1):
            self.tokens[self.num_tokens] = token
            self.num_tokens += 1
            if token in self.stop_ids:
                return Appended(token_ids[:count], FinishReason.STOP)
            if self.num_tokens == self.limit:
                return Appended(token_ids[:count], FinishReason.LENGTH)
        return Appended(token_ids, None)

    def slots(self, start: int, stop: int) -> np.ndarray:
        """int64 [stop - start]: where KV and features of the committed positions lie now."""
        slots = self.table.slots(start, stop)
        if self.moves is not None:
            src, dst = self.moves
            row, move = np.nonzero(slots[:, None] == dst[None, :])
            slots[row] = src[move]
        return slots

    def path_from(self, base: int) -> np.ndarray | None:
        """int32: rows of the last step that hold the positions [base, committed_len), or None where some are older."""
        if self.path_rows is None or base < self.path_base:
            return None
        return self.path_rows[base - self.path_base :]

    def close(self) -> None:
        """Frees the pages; a second call does nothing."""
        self.moves = None
        self.table.close()


def finish_before_start(request: Request, *, limit: int, eos_token_ids: tuple[int, ...]) -> FinishReason | None:
    """Why a replayed request has nothing left to generate, or None: its last attempt's end was lost on the way."""
    emitted = request.emitted_ids
    if not len(emitted):
        return None
    last = int(emitted[-1])
    if last in request.params.stop_token_ids or (not request.params.ignore_eos and last in eos_token_ids):
        return FinishReason.STOP
    full = len(request.prompt_ids) + len(emitted) >= limit
    return FinishReason.LENGTH if full else None
