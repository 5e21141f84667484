"""What the pictures of measurements share: a white page with a title, and a legend."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

_COLUMN, _ROW, _COLUMNS = 190, 20, 5


def page(width: int, height: int, title: str, body: Iterable[str]) -> str:
    """A whole SVG document."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="10" y="22" font-size="15">{escape(title)}</text>',
        *body,
    ]
    return "\n".join([*lines, "</svg>", ""])


def legend(entries: Iterable[tuple[str, str]]) -> Iterator[str]:
    """entries: name and colour. Takes 40 pixels below the title for up to ten."""
    for i, (name, colour) in enumerate(entries):
        x, y = 10 + i % _COLUMNS * _COLUMN, 34 + i // _COLUMNS * _ROW
        yield f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{x + 17}" y="{y + 11}">{escape(name)}</text>'
