"""RequestDesk: admission, cancellation and the end of requests; the routers' streams and their credits."""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from engine.pages import PageAllocator, PageTable
from paceline.errors import PacelineError
from paceline.stats import SpeculationStats
from paceline.tracing import NO_SPAN, Tracer
from paceline.tree import MAX_NODES
from paceline.types import FinishReason
from target_service.credits import CreditBook
from target_service.draft_desk import DraftDesk
from target_service.emission import Emission, Finished, Returned, ReturnReason, StreamBatch
from target_service.events import Cancelled, PolicySet, Refused, SpeculationUpdated
from target_service.metrics import TargetMetrics
from target_service.policy_book import PolicyBook
from target_service.request import Cost, Request, RequestKey
from target_service.scheduler import Limits
from target_service.sequence import Sequence, finish_before_start
from target_service.sequence_table import SequenceTable

_NO_TRACES = Tracer()


class DuplicateRequestError(PacelineError):
    """A router gave two running requests the same number."""

    code = grpc.StatusCode.ALREADY_EXISTS


@dataclass(frozen=True, slots=True)
class RequestBounds:
    """The model's bounds of a request, and the flags' bounds of a batch."""

    context_length: int
    eos_token_ids: tuple[int, ...]
    max_running_requests: int
    limits: Limits


class RequestDesk:
    """Owns every Sequence from admission to its end, and puts what the routers must know into ``emission``.

    Engine thread only. A request ends in exactly one Finished or Returned, or silently with its stream; its
    pages, its credits and its draft session go back in the same call.
    """

    def __init__(
        self,
        allocator: PageAllocator,
        bounds: RequestBounds,
        *,
        drafts: DraftDesk,
        metrics: TargetMetrics,
        tracer: Tracer = _NO_TRACES,
    ) -> None:
        self.sequences: dict[RequestKey, Sequence] = {}  # in order of arrival
        # Of them past their prompt: prompts do not count as decode load, or the ladder would flap.
        self.num_decoding = 0
        self.table = SequenceTable(
            bounds.max_running_requests, context_length=bounds.context_length, page_size=allocator.page_size
        )
        self.emission = Emission()
        self.draining = False
        self.credits = CreditBook(num_slots=bounds.max_running_requests, num_pages=allocator.num_pages)
        self._allocator = allocator
        self._bounds = bounds
        self._drafts = drafts
        self._metrics = metrics
        self._tracer = tracer
        self._costs: dict[RequestKey, Cost] = {}
        self._policies = PolicyBook(bounds.limits, max_running_requests=bounds.max_running_requests)
        self._streams: list[int] = []

    def open_stream(self, stream: int) -> None:
        self._streams.append(stream)
        self.credits.open(stream)
        self.batch(stream)

    def close_stream(self, stream: int) -> None:
        """Ends the stream's requests without a word."""
        for key in [key for key in self.sequences if key.stream == stream]:
            self._release(key, FinishReason.CANCELLED.value)
            self._metrics.finished(FinishReason.CANCELLED.value)
        self._streams.remove(stream)
        self.credits.close(stream)
        self.emission.streams.pop(stream, None)
        self._policies.drop(stream)
        self.credits.set_slots(self.max_running_requests)

    def submit(self, request: Request) -> None:
        """Admits a request, or gives it back, or ends it where nothing is left to generate."""
        stream, number = request.key
        held = self.credits.spend(stream, request.cost)
        if request.key in self.sequences:
            message = f"request {number} runs already; give each submission of a stream a number of its own"
            self.finish(request.key, FinishReason.ERROR, DuplicateRequestError(message))
        elif self.draining:
            self._return(request.key, ReturnReason.DRAINING)
        elif not held:
            self._return(request.key, ReturnReason.NO_CREDIT)
        else:
            self._costs[request.key] = request.cost
            self._admit(request)
            return
        if held:
            self.credits.give_back(stream, request.cost)

    def refuse(self, event: Refused) -> None:
        """A submission that did not pass the edge: it ends with the error's status."""
        if self.credits.spend(event.stream, event.cost):
            self.credits.give_back(event.stream, event.cost)
        self.batch(event.stream).finishes.append(Finished(event.request, FinishReason.ERROR, None, event.error))
        self._metrics.finished(FinishReason.ERROR.value)

    def cancel(self, event: Cancelled) -> None:
        """Requests that have ended already are left out."""
        for number in event.requests:
            key = RequestKey(event.stream, number)
            if key in self.sequences:
                self.finish(key, FinishReason.CANCELLED)

    def update_speculation(self, event: SpeculationUpdated) -> None:
        for number, decision in zip(event.requests, event.decisions, strict=True):
            seq = self.sequences.get(RequestKey(event.stream, number))
            if seq is None:
                continue
            seq.decision = decision
            self._drafts.follow(seq)

    def set_policy(self, event: PolicySet) -> None:
        self._policies.set(event)
        self.credits.set_slots(self.max_running_requests)

    @property
    def limits(self) -> Limits:
        """Of a step."""
        return self._policies.limits

    @property
    def max_running_requests(self) -> int:
        return self._policies.max_running_requests

    @property
    def join_rounds(self) -> bool | None:
        """Whether one of the routers that have requests here wishes it; None: none of them says."""
        streams = self._streams if len(self._streams) == 1 else (key.stream for key in self.sequences)
        return self._policies.join_rounds(streams)

    def begin_decoding(self, seq: Sequence) -> None:
        """The request's prompt is done."""
        seq.is_decoding = True
        seq.span.note("first token")
        self.num_decoding += 1

    def finish(self, key: RequestKey, reason: FinishReason, error: PacelineError | None = None) -> None:
        """Ends a running request; its tokens are in the emission before that is taken, or went before."""
        stats = self._release(key, reason.value)
        self.batch(key.stream).finishes.append(Finished(key.request, reason, stats, error))
        self._metrics.finished(reason.value)

    def return_all(self, reason: ReturnReason) -> None:
        """Gives every running request back to its router."""
        for key in list(self.sequences):
            stats = self._release(key, reason.value)
            self.batch(key.stream).returns.append(Returned(key.request, reason, stats))
            self._metrics.returned(reason.value, was_running=True)

    def is_open(self, stream: int) -> bool:
        return stream in self._streams

    def batch(self, stream: int) -> StreamBatch:
        """The stream's part of the emission that is being gathered."""
        return self.emission.streams.setdefault(stream, StreamBatch())

    def take_emission(self, *, to_all: bool) -> Emission:
        """What was gathered, with each stream's credits; to_all: with a batch for streams that have no news, too."""
        emission, self.emission = self.emission, Emission()
        for stream in self._streams if to_all else list(emission.streams):
            emission.streams.setdefault(stream, StreamBatch()).credits = self.credits.grant(stream)
        emission.drained = self.drained
        return emission

    @property
    def drained(self) -> bool:
        return self.draining and not self.sequences

    @property
    def num_pages(self) -> int:
        return self._allocator.num_pages

    @property
    def num_free_pages(self) -> int:
        return self._allocator.num_free

    @property
    def has_news(self) -> bool:
        return bool(self.emission.streams)

    def _admit(self, request: Request) -> None:
        prompt_len = len(request.prompt_ids)
        limit = min(prompt_len + request.params.max_tokens, self._bounds.context_length)
        eos_token_ids = self._bounds.eos_token_ids
        ended = finish_before_start(request, limit=limit, eos_token_ids=eos_token_ids)
        if ended is not None:
            self.credits.give_back(request.key.stream, self._costs.pop(request.key))
            self.batch(request.key.stream).finishes.append(Finished(request.key.request, ended, None))
            self._metrics.finished(ended.value)
            return
        pages = PageTable(self._allocator)
        pages.reserve(limit + MAX_NODES)
        assert len(pages.pages) == request.cost.pages, f"{len(pages.pages)} pages, paid {request.cost.pages}"
        seq = Sequence(request, pages, self.table, limit=limit, eos_token_ids=eos_token_ids)
        if request.traceparent:
            seq.span = self._tracer.begin("target request", parent=request.traceparent, request_id=request.request_id)
        self.sequences[request.key] = seq
        self._drafts.follow(seq)

    def _release(self, key: RequestKey, reason: str) -> SpeculationStats:
        """What speculation did for the request, whose pages, row, session and credits go back."""
        seq = self.sequences.pop(key)
        stats = seq.stats
        self.num_decoding -= seq.is_decoding
        self._drafts.leave(seq)
        _end_span(seq, stats, reason)
        seq.close()
        self.credits.give_back(key.stream, self._costs.pop(key))
        return stats

    def _return(self, key: RequestKey, reason: ReturnReason) -> None:
        self.batch(key.stream).returns.append(Returned(key.request, reason, None))
        self._metrics.returned(reason.value, was_running=False)


def _end_span(seq: Sequence, stats: SpeculationStats, reason: str) -> None:
    if seq.span is not NO_SPAN:
        seq.span.end(
            reason=reason,
            prompt_tokens=seq.prompt_len,
            context_tokens=seq.committed_len,
            rounds=stats.rounds,
            speculative_rounds=stats.speculative_rounds,
            accepted_drafts=stats.accepted_drafts,
            late_rounds=stats.late_rounds,
        )
