"""A picture of a sweep: throughput and p99 time per token against load, a line a policy, as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from bench.policies import ADAPTIVE
from bench.svg import legend, page

_COLOURS = ("#7f7f7f", "#9ecae1", "#3182bd", "#31a354", "#fdae6b", "#756bb1", "#8c564b", "#bcbd22")
_ADAPTIVE_COLOUR = "#d62728"
_WIDTH, _PLOT_WIDTH, _PLOT_HEIGHT = 1000, 400, 260
_LEFT, _TOP, _COLUMN, _ROW = 70, 110, 500, 340
_TICKS = 5


@dataclass(frozen=True, slots=True)
class _Panel:
    title: str
    field: str
    entries: Sequence[dict[str, Any]]
    x: int
    y: int


def sweep_picture(document: dict[str, Any], title: str) -> str:
    """A row for closed loops, one for open ones, where there are any. Loads with several phases are left out."""
    steady = [entry for entry in document["summary"] if not _has_phases(entry)]
    policies = list(dict.fromkeys(entry["policy"] for entry in steady))
    colours = dict(zip(policies, _COLOURS * len(policies), strict=False)) | {ADAPTIVE: _ADAPTIVE_COLOUR}
    body = [*legend((policy, colours[policy]) for policy in policies)]
    y = _TOP
    for is_open, word in ((False, "requests in flight"), (True, "arrivals a second")):
        entries = [entry for entry in steady if entry["is_open"] is is_open]
        if not entries:
            continue
        body += _panel(_Panel(f"tokens/s by {word}", "tokens_per_s", entries, _LEFT, y), colours)
        body += _panel(_Panel(f"p99 ms a token by {word}", "tpot_p99_ms", entries, _LEFT + _COLUMN, y), colours)
        y += _ROW
    return page(_WIDTH, y, title, body)


def _panel(panel: _Panel, colours: dict[str, str]) -> Iterator[str]:
    """Loads at even distances, whatever their amounts."""
    amounts = sorted({_amount(entry) for entry in panel.entries})
    values = [entry[panel.field] for entry in panel.entries if entry[panel.field] is not None]
    tick = _tick(max(values, default=0.0) or 1.0)
    top = tick * _TICKS
    bottom = panel.y + _PLOT_HEIGHT

    def place(entry: dict[str, Any]) -> tuple[float, float]:
        share = amounts.index(_amount(entry)) / max(1, len(amounts) - 1)
        return panel.x + share * _PLOT_WIDTH, bottom - entry[panel.field] / top * _PLOT_HEIGHT

    yield f'<text x="{panel.x}" y="{panel.y - 14}">{escape(panel.title)}</text>'
    for i in range(_TICKS + 1):
        y = bottom - i * _PLOT_HEIGHT / _TICKS
        yield f'<line x1="{panel.x}" y1="{y:.1f}" x2="{panel.x + _PLOT_WIDTH}" y2="{y:.1f}" stroke="#ddd"/>'
        yield f'<text x="{panel.x - 8}" y="{y + 4:.1f}" text-anchor="end">{i * tick:g}</text>'
    for i, amount in enumerate(amounts):
        x = panel.x + i * _PLOT_WIDTH / max(1, len(amounts) - 1)
        yield f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{amount:g}</text>'
    for policy in dict.fromkeys(entry["policy"] for entry in panel.entries):
        known = [e for e in panel.entries if e["policy"] == policy and e[panel.field] is not None]
        points = sorted(place(entry) for entry in known)
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        yield f'<polyline points="{path}" fill="none" stroke="{colours[policy]}" stroke-width="2"/>'
        for x, y in points:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colours[policy]}"><title>{policy}</title></circle>'


def _has_phases(entry: dict[str, Any]) -> bool:
    return "-" in entry["load"]


def _amount(entry: dict[str, Any]) -> float:
    return float(entry["load"].removesuffix("/s"))


def _tick(most: float) -> float:
    """A round number of which _TICKS reach past most."""
    unit = 10.0 ** math.floor(math.log10(most / _TICKS))
    return next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor * _TICKS >= most)
