"""A picture of round profiles: a bar for each, divided into its parts, as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from bench.round_profile import PARTS, RoundProfile
from bench.svg import legend, page

_COLOURS = (
    "#9ecae1",
    "#3182bd",
    "#6baed6",
    "#d62728",
    "#fdae6b",
    "#e6550d",
    "#31a354",
    "#a1d99b",
    "#bcbddc",
    "#756bb1",
)
_WIDTH, _LEFT, _RIGHT = 1000, 150, 110
_BAR, _STEP, _TOP = 30, 62, 100
_NARROWEST_LABEL = 42  # pixels


def round_picture(profiles: Sequence[RoundProfile], title: str) -> str:
    """All bars on one scale. profiles must not be empty."""
    height = _TOP + _STEP * len(profiles) + 10
    longest_ms = max(max(profile.interval_ms, sum(profile.parts_ms.values())) for profile in profiles)
    scale = (_WIDTH - _LEFT - _RIGHT) / longest_ms  # pixels a millisecond
    lines = [*legend(zip(PARTS, _COLOURS, strict=True))]
    for row, profile in enumerate(profiles):
        lines += _bar(profile, _TOP + row * _STEP, scale)
    return page(_WIDTH, height, title, lines)


def _bar(profile: RoundProfile, y: int, scale: float) -> Iterator[str]:
    yield f'<text x="10" y="{y + 14}">{escape(profile.label)}</text>'
    yield f'<text x="10" y="{y + 29}" fill="#555">{profile.concurrency} in flight</text>'
    x = float(_LEFT)
    for part, colour in zip(PARTS, _COLOURS, strict=True):
        part_ms = profile.parts_ms[part]
        width = part_ms * scale
        yield (
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{colour}">'
            f"<title>{escape(part)}: {part_ms:.2f} ms</title></rect>"
        )
        if width >= _NARROWEST_LABEL:
            yield f'<text x="{x + width / 2:.1f}" y="{y + 19}" text-anchor="middle">{part_ms:.2f}</text>'
        x += width
    yield f'<text x="{x + 6:.1f}" y="{y + 14}">{profile.interval_ms:.2f} ms</text>'
    yield f'<text x="{x + 6:.1f}" y="{y + 29}" fill="#555">{profile.overhead:.0%} overhead</text>'
