"""Traces of requests across the services, in W3C trace context. Off, or not sampled, a span is nothing at all."""

from __future__ import annotations

import random
import re

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_SAMPLED = 1

Attribute = str | bool | int | float


class Span:
    """A span that is not there: the one of a request that is not traced. Safe to use from any thread."""

    traceparent: str = ""  # for the spans that belong under this one in another process; "": not traced

    def child(self, name: str, **attributes: Attribute) -> Span:
        """One that begins now."""
        return self

    def note(self, name: str, **attributes: Attribute) -> None:
        """Something that happened now."""

    def end(self, *, error: str = "", **attributes: Attribute) -> None:
        """It ends now; again is fine."""


NO_SPAN = Span()


class Tracer:
    """Begins spans. This one traces nothing; ``paceline.otel`` has the one that does."""

    is_on = False

    def begin(self, name: str, *, parent: str = "", **attributes: Attribute) -> Span:
        """A span under the parent, W3C's traceparent, if that is sampled; without one, for a share of all requests."""
        return NO_SPAN

    def close(self) -> None:
        """Sends what is left to send. May take seconds."""


class Sampler:
    """Which requests are traced: those whose caller says so, and a share of those whose caller says nothing."""

    def __init__(self, ratio: float, rng: random.Random) -> None:
        self._ratio = ratio
        self._rng = rng

    def wants(self, parent: str) -> bool:
        """parent: a traceparent, or "". One that does not parse counts as none, as the standard has it."""
        if not is_traceparent(parent):
            return self._rng.random() < self._ratio
        return bool(int(parent[-2:], 16) & _SAMPLED)


def is_traceparent(text: str) -> bool:
    """Whether it is one of W3C's, of a version that may be read as version 00."""
    if not _TRACEPARENT.fullmatch(text[:55]) or text.startswith("ff") or (len(text) > 55 and text.startswith("00")):
        return False
    _, trace_id, span_id, _ = text[:55].split("-")
    return bool(trace_id.strip("0") and span_id.strip("0"))
