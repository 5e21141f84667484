"""Tables of accepted length: one head's, or two heads' side by side."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from training.evaluation import EvaluationRow, joined


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


_Key = tuple[str, float, tuple[int, int, int]]


def _joined_rows(rows: Sequence[EvaluationRow], head: str) -> list[tuple[_Key, EvaluationRow]]:
    """Sorted, a set's categories together and all of them first."""
    mine = sorted((row for row in rows if row.head == head), key=_key)
    return [(key, row) for key, group in groupby(mine, key=_key) for row in joined(group).values()]


def _key(row: EvaluationRow) -> _Key:
    return row.set_name, row.temperature, row.shape


def _ratio(row: EvaluationRow, other: EvaluationRow) -> float:
    return row.accepted_length / other.accepted_length if other.accepted_length else 0.0
