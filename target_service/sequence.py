"""Sequence: one request's tokens, pages and progress."""

from __future__ import annotations

import numpy as np

from engine.pages import PageTable
from paceline.stats import SpeculationStats
from paceline.tracing import NO_SPAN
from paceline.types import FinishReason, SamplingParams, SpeculationDecision
from target_service.draft_session import DraftSession
from target_service.request import Request, RequestKey
from target_service.sequence_table import SequenceTable


class Sequence:
    """Owns the pages and the table's row of one request from admission until ``close``.

    In prefill tokens up to prefill_len have no KV yet; in decode the newest token alone has none, at position
    committed_len. KV that an accepted path left out of place moves before the request's next step (the table's
    ``moves``), and until that is planned ``slots`` names where it is.
    """

    __slots__ = (
        "decision",
        "draft",
        "drafted_step",
        "drafted_tree",
        "half",
        "is_ahead",
        "is_closed",
        "is_decoding",
        "is_running",
        "key",
        "limit",
        "pages",
        "params",
        "prefill_len",
        "prompt_len",
        "row",
        "span",
        "stop_ids",
        "table",
    )

    def __init__(
        self, request: Request, pages: PageTable, table: SequenceTable, *, limit: int, eos_token_ids: tuple[int, ...]
    ) -> None:
        """limit: tokens that the request may hold, prompt and output, more than prompt and emitted tokens."""
        self.key: RequestKey = request.key
        self.params: SamplingParams = request.params
        self.decision: SpeculationDecision = request.decision
        self.pages = pages
        self.table = table
        self.prompt_len = len(request.prompt_ids)
        self.prefill_len = self.prompt_len + len(request.emitted_ids)
        self.limit = limit
        self.stop_ids = frozenset(request.params.stop_token_ids)
        if not request.params.ignore_eos:
            self.stop_ids |= frozenset(eos_token_ids)
        self.row = table.add(request, pages.page_ids, limit=limit)
        self.is_decoding = False
        self.is_running = False  # in a step that was launched and is not known yet
        self.is_ahead = False  # that step was launched behind its own last one: it moves nothing that is committed
        self.is_closed = False
        self.half = 0  # that its trees belong to, 0 or 1, where rounds are split
        self.draft: DraftSession | None = None
        self.span = NO_SPAN
        self.drafted_step = 0  # the step that it last speculated in
        self.drafted_tree = 0  # of that step

    @property
    def committed_len(self) -> int:
        """Tokens whose KV is in the pool."""
        return self.table.committed_len.item(self.row)

    @committed_len.setter
    def committed_len(self, num_tokens: int) -> None:
        self.table.committed_len[self.row] = num_tokens

    @property
    def planned_len(self) -> int:
        """Tokens whose KV is in the pool once the step under way is known."""
        return self.table.committed_len.item(self.row) + self.table.pending_len.item(self.row)

    @property
    def last_step(self) -> int:
        """The step that it last took part in."""
        return self.table.last_step.item(self.row)

    @property
    def stats(self) -> SpeculationStats:
        """What speculation did for it so far. To be asked before ``close``."""
        return self.table.counts.of(self.row)

    @property
    def tokens(self) -> np.ndarray:
        """int32 [context length]: a view of prompt and output, and of what is not written yet."""
        view: np.ndarray = self.table.tokens[self.row]
        return view

    def slots(self, start: int, stop: int) -> np.ndarray:
        """int64 [stop - start]: where KV and features of the committed positions lie now."""
        slots = self.pages.slots(start, stop)
        moves = self.table.moves
        if len(moves.rows):
            mine = moves.rows == self.row
            row, move = np.nonzero(slots[:, None] == moves.dst[mine][None, :])
            slots[row] = moves.src[mine][move]
        return slots

    def close(self) -> None:
        """Frees the pages and the row. Once."""
        self.is_closed = True
        self.table.remove(self.row)
        self.pages.close()


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
