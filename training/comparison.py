"""Tables of accepted length and of speed: one head's, or two heads' side by side."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from training.evaluation import EvaluationRow, joined
from training.speed import SpeedRow


def figures_table(rows: Sequence[EvaluationRow], head: str, other: str = "") -> str:
    """Markdown, a line a set, temperature, tree and category. other: the head to compare with, "" for none."""
    names = ["prompts", "category", "temperature", "tree", "accepted length a round"]
    if other:
        names += ["the other head's", "ratio"]
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    measured = {(*key, row.category): row for key, row in _joined_rows(rows, head)}
    others = {(*key, row.category): row for key, row in _joined_rows(rows, other)}
    for key, row in measured.items():
        cells = [row.set_name, row.category, f"{row.temperature:g}", str(row.shape), f"{row.accepted_length:.3f}"]
        if other:
            beside = others.get(key)
            cells += [f"{beside.accepted_length:.3f}", f"{_ratio(row, beside):.3f}"] if beside is not None else ["", ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def speed_table(speeds: Sequence[SpeedRow], head: str, other: str = "") -> str:
    """Markdown, a line a tree; "" where nothing was measured. other: as in ``figures_table``."""
    mine, others = ({row.shape: row for row in speeds if row.head == name} for name in (head, other))
    if not mine:
        return ""
    names = ["tree", "tokens/s, one request", "without a head", "speed-up"]
    names += ["the other head's speed-up"] if other else []
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    for shape, row in mine.items():
        cells = [str(shape), f"{row.tokens_per_s:.0f}", f"{row.plain_tokens_per_s:.0f}", _speed_up(row)]
        if other:
            cells.append(_speed_up(others[shape]) if shape in others else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _speed_up(row: SpeedRow) -> str:
    return f"{row.tokens_per_s / row.plain_tokens_per_s:.2f}"


_Key = tuple[str, float, tuple[int, int, int]]


def _joined_rows(rows: Sequence[EvaluationRow], head: str) -> list[tuple[_Key, EvaluationRow]]:
    """Sorted, a set's categories together and all of them first."""
    mine = sorted((row for row in rows if row.head == head), key=_key)
    return [(key, row) for key, group in groupby(mine, key=_key) for row in joined(group).values()]


def _key(row: EvaluationRow) -> _Key:
    return row.set_name, row.temperature, row.shape


def _ratio(row: EvaluationRow, other: EvaluationRow) -> float:
    return row.accepted_length / other.accepted_length if other.accepted_length else 0.0
