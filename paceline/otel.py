"""Traces by OpenTelemetry's SDK, sent by OTLP over HTTP: the extra ``otel``, imported where traces are asked for."""

from __future__ import annotations

import random

from paceline import __version__
from paceline.errors import ConfigError
from paceline.tracing import NO_SPAN, Attribute, Sampler, Span, Tracer

try:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ConfigError(f"--otlp-traces-endpoint needs OpenTelemetry ({error}): pip install 'paceline[otel]'") from error

_PROPAGATOR = TraceContextTextMapPropagator()
_FLUSH_MS = 3000


class OtelTracer(Tracer):
    """Sends spans in batches from a thread of its own; a collector that does not answer costs the spans, no more."""

    is_on = True

    def __init__(self, service: str, exporter: SpanExporter, *, sampler: Sampler) -> None:
        resource = Resource.create({"service.name": f"paceline-{service}", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, sampler=ALWAYS_ON, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("paceline", __version__)
        self._sampler = sampler

    def begin(self, name: str, *, parent: str = "", **attributes: Attribute) -> Span:
        if not self._sampler.wants(parent):
            return NO_SPAN
        context = _PROPAGATOR.extract({"traceparent": parent}) if parent else None
        kind = trace.SpanKind.SERVER
        return OtelSpan(self._tracer, self._tracer.start_span(name, context, kind=kind, attributes=attributes))

    def close(self) -> None:
        self._provider.force_flush(_FLUSH_MS)
        self._provider.shutdown()


class OtelSpan(Span):
    """One that is recorded."""

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self._span = span
        context = span.get_span_context()
        self.traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def child(self, name: str, **attributes: Attribute) -> Span:
        context = trace.set_span_in_context(self._span)
        return OtelSpan(self._tracer, self._tracer.start_span(name, context, attributes=attributes))

    def note(self, name: str, **attributes: Attribute) -> None:
        self._span.add_event(name, attributes)

    def end(self, *, error: str = "", **attributes: Attribute) -> None:
        if not self._span.is_recording():
            return
        self._span.set_attributes(attributes)
        if error:
            self._span.set_status(trace.StatusCode.ERROR, error)
        self._span.end()


def otlp_tracer(service: str, endpoint: str, *, ratio: float) -> OtelTracer:
    """To a collector's URL, such as http://collector:4318/v1/traces. OTEL_EXPORTER_OTLP_* set headers and timeouts."""
    return OtelTracer(service, OTLPSpanExporter(endpoint=endpoint), sampler=Sampler(ratio, random.Random()))
