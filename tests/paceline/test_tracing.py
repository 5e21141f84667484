"""Trace context: what is a traceparent, what is sampled, and what the spans of OpenTelemetry look like."""

from __future__ import annotations

import random

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from paceline.otel import OtelTracer
from paceline.tracing import NO_SPAN, Sampler, Tracer, is_traceparent

TRACE = "0af7651916cd43dd8448eb211c80319c"
SAMPLED = f"00-{TRACE}-b7ad6b7169203331-01"
UNSAMPLED = f"00-{TRACE}-b7ad6b7169203331-00"


@pytest.mark.parametrize(
    ("text", "good"),
    [
        (SAMPLED, True),
        (UNSAMPLED, True),
        ("01" + SAMPLED[2:] + "-later", True),  # a later version is read as far as it is known
        ("", False),
        (SAMPLED + "-more", False),
        ("ff" + SAMPLED[2:], False),
        (SAMPLED.upper(), False),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        ("00-short-b7ad6b7169203331-01", False),
    ],
)
def test_a_traceparent_is_what_the_standard_says(text: str, good: bool) -> None:
    assert is_traceparent(text) is good


def test_the_caller_decides_and_else_a_share_is_traced() -> None:
    never, always = Sampler(0.0, random.Random(1)), Sampler(1.0, random.Random(1))
    assert never.wants(SAMPLED) and not always.wants(UNSAMPLED)
    assert not never.wants("") and always.wants("") and always.wants("nonsense")
    tenth = Sampler(0.1, random.Random(1))
    assert 80 <= sum(tenth.wants("") for _ in range(1000)) <= 120


def test_spans_go_under_their_parents_and_carry_what_they_were_told() -> None:
    exporter = InMemorySpanExporter()
    tracer = OtelTracer("router", exporter, sampler=Sampler(0.0, random.Random(1)))
    assert tracer.begin("Generate") is NO_SPAN and tracer.begin("Generate", parent=UNSAMPLED) is NO_SPAN
    span = tracer.begin("Generate", parent=SAMPLED, tenant="acme")
    child = span.child("attempt", number=0)
    below = tracer.begin("target request", parent=child.traceparent)
    assert span.traceparent.startswith(f"00-{TRACE}-") and span.traceparent.endswith("-01")
    below.end()
    child.note("first token")
    child.end(error="lost")
    child.end()
    span.end(prompt_tokens=3)
    tracer.close()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert len(exporter.get_finished_spans()) == 3
    assert {f"{span.context.trace_id:032x}" for span in spans.values()} == {TRACE}
    assert spans["attempt"].parent.span_id == spans["Generate"].context.span_id
    assert spans["target request"].parent.span_id == spans["attempt"].context.span_id
    assert spans["attempt"].status.description == "lost" and spans["attempt"].events[0].name == "first token"
    assert dict(spans["Generate"].attributes) == {"tenant": "acme", "prompt_tokens": 3}
    assert spans["Generate"].resource.attributes["service.name"] == "paceline-router"


def test_without_a_tracer_nothing_is_there() -> None:
    span = Tracer().begin("Generate", parent=SAMPLED)
    assert span is NO_SPAN and span.child("queue") is NO_SPAN and span.traceparent == ""
    span.note("first token")
    span.end(error="none")
