"""The spans and log lines of a request at the router, attempts and refusals included."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import paceline.otel
from paceline.otel import OtelTracer
from paceline.tracing import Sampler
from paceline.v1 import router_pb2, target_pb2

Make = Callable[..., Awaitable[Any]]
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ENDPOINT = "http://127.0.0.1:1/v1/traces"


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What the router's tracer sends, kept here."""
    exporter = InMemorySpanExporter()

    def tracer(service: str, endpoint: str, *, ratio: float) -> OtelTracer:
        assert endpoint == ENDPOINT
        return OtelTracer(service, exporter, sampler=Sampler(ratio, random.Random(1)))

    monkeypatch.setattr(paceline.otel, "otlp_tracer", tracer)
    yield exporter
    exporter.clear()


async def spans_of(rig: Any, exporter: InMemorySpanExporter) -> dict[str, list[ReadableSpan]]:
    rig.router.plumbing.close()
    found: dict[str, list[ReadableSpan]] = {}
    for span in exporter.get_finished_spans():
        found.setdefault(span.name, []).append(span)
    return found


async def test_a_request_that_is_replayed_has_a_span_for_each_wait_and_attempt(
    make_target: Make, make_rig: Make, collect: Any, exported: InMemorySpanExporter
) -> None:
    target = await make_target()
    rig = await make_rig([target], otlp_traces_endpoint=ENDPOINT, trace_sample_ratio=0.0, speculative_policy="off")
    stream = await target.next_stream()
    request = router_pb2.GenerateRequest(token_ids=router_pb2.TokenIds(ids=[5, 6]), request_id="r1")
    call = rig.stub.Generate(request, metadata=(("traceparent", CALLER),))
    first = await stream.next_submission()
    stream.give_back(first.request, target_pb2.RETURN_REASON_PREEMPTED)
    second = await stream.next_submission()
    stream.tokens(second.request, 0, [7])
    stream.finish(second.request)
    await collect(call)
    spans = await spans_of(rig, exported)
    (whole,), attempts = spans["Generate"], spans["attempt"]
    assert len(spans["queue"]) == 2 and [span.attributes["number"] for span in attempts] == [0, 1]
    assert [span.status.description for span in attempts] == ["preempted", None]
    assert {span.parent.span_id for span in (*spans["queue"], *attempts)} == {whole.context.span_id}
    assert f"{whole.context.trace_id:032x}" in CALLER and f"{whole.parent.span_id:016x}" in CALLER
    for submission, span in zip((first, second), attempts, strict=True):
        trace, parent = f"{whole.context.trace_id:032x}", f"{span.context.span_id:016x}"
        assert submission.traceparent == f"00-{trace}-{parent}-01"
    assert whole.attributes["request_id"] == "r1" and whole.attributes["attempts"] == 2
    assert whole.attributes["completion_tokens"] == 1 and whole.events[0].name == "first token"


async def test_what_is_not_sampled_leaves_no_trace_anywhere(
    make_target: Make, make_rig: Make, collect: Any, exported: InMemorySpanExporter
) -> None:
    target = await make_target()
    rig = await make_rig([target], otlp_traces_endpoint=ENDPOINT, trace_sample_ratio=0.0)
    stream = await target.next_stream()
    call = rig.generate()
    submission = await stream.next_submission()
    assert submission.traceparent == ""
    stream.finish(submission.request)
    await collect(call)
    assert await spans_of(rig, exported) == {}


async def test_a_refusal_is_a_span_with_its_error(
    make_target: Make, make_rig: Make, failure: Any, exported: InMemorySpanExporter
) -> None:
    rig = await make_rig([await make_target()], otlp_traces_endpoint=ENDPOINT, trace_sample_ratio=1.0)
    await failure(rig.generate(ids=[], request_id="empty"))
    (span,) = (await spans_of(rig, exported))["Generate"]
    assert "the prompt is empty" in span.status.description and span.attributes["request_id"] == "empty"


async def test_requests_are_logged_by_id_where_that_is_asked_for(
    make_target: Make, make_rig: Make, collect: Any, failure: Any, caplog: pytest.LogCaptureFixture
) -> None:
    target = await make_target()
    rig = await make_rig([target], log_requests=True)
    stream = await target.next_stream()
    with caplog.at_level(logging.INFO, logger="router.requests"):
        call = rig.generate(request_id="r7", tenant="acme")
        submission = await stream.next_submission()
        stream.tokens(submission.request, 0, [7, 8])
        stream.finish(submission.request)
        await collect(call)
        await failure(rig.generate(ids=[], request_id="r8"))
    ended, refused = caplog.records
    assert (ended.request_id, ended.tenant, ended.outcome) == ("r7", "acme", "length")
    assert (ended.completion_tokens, ended.attempts) == (2, 1)
    assert (refused.request_id, refused.code) == ("r8", "INVALID_ARGUMENT")
