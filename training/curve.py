"""The plot of a training run, as SVG: loss and acceptance by depth over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_WIDTH, _HEIGHT, _MARGIN = 460, 300, 50
_COLOURS = ("#1b6ca8", "#2a9d8f", "#8ab17d", "#e9c46a", "#f4a261", "#e76f51", "#9d4edd", "#6c757d")


@dataclass(frozen=True, slots=True)
class _Panel:
    title: str
    field: str
    held_out: bool
    is_share: bool


_PANELS = (
    _Panel("loss, training data", "loss", False, False),
    _Panel("accepted up to a depth, training data", "accepted", False, True),
    _Panel("loss, held-out data", "loss", True, False),
    _Panel("accepted up to a depth, held-out data", "accepted", True, True),
)


def draw_curve(lines: Sequence[dict[str, Any]]) -> str:
    """lines: of a RunLog. A panel without two points stays empty."""
    parts = []
    for i, panel in enumerate(_PANELS):
        x, y = i % 2 * _WIDTH, i // 2 * _HEIGHT
        parts.append(f'<g transform="translate({x},{y})">{_draw(panel, lines)}</g>')
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * _WIDTH}" height="{2 * _HEIGHT}" '
        f'font-family="sans-serif" font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def _draw(panel: _Panel, lines: Sequence[dict[str, Any]]) -> str:
    chosen = [line for line in lines if line["held_out"] == panel.held_out]
    title = f'<text x="{_MARGIN}" y="24" font-size="13">{panel.title}</text>'
    if len(chosen) < 2:
        return title
    steps = [line["step"] for line in chosen]
    curves = list(zip(*(line[panel.field] for line in chosen), strict=True))
    low, high = (0.0, 1.0) if panel.is_share else (min(map(min, curves)), max(map(max, curves)))
    high = high if high > low else low + 1

    def at(step: float, value: float) -> tuple[float, float]:
        x = _MARGIN + (step - steps[0]) / max(steps[-1] - steps[0], 1) * (_WIDTH - 2 * _MARGIN)
        return x, _HEIGHT - _MARGIN - (value - low) / (high - low) * (_HEIGHT - 2 * _MARGIN)

    parts = [title]
    for i in range(5):
        value = low + (high - low) * i / 4
        (x, y), (end, _) = at(steps[0], value), at(steps[-1], value)
        parts.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{end:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{x - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{value:.2f}</text>')
    for step in (steps[0], steps[-1]):
        parts.append(
            f'<text x="{at(step, low)[0]:.1f}" y="{_HEIGHT - _MARGIN + 18}" text-anchor="middle">{step}</text>'
        )
    for depth, values in enumerate(curves):
        points = " ".join("{:.1f},{:.1f}".format(*at(s, v)) for s, v in zip(steps, values, strict=True))
        colour = _COLOURS[depth % len(_COLOURS)]
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        x, y = at(steps[-1], values[-1])
        parts.append(f'<text x="{x + 5:.1f}" y="{y + 4:.1f}" fill="{colour}">{depth + 1}</text>')
    return "".join(parts)
