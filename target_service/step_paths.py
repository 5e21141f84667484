"""StepPaths: what requests committed in a step, as rows of that step."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StepPaths:
    """Lists with an entry for each tree of the step, or flat ones. A request knows its tree (``drafted_tree``)."""

    step: int = 0
    roots: list[int] = field(default_factory=list)  # positions
    stop_rows: list[int] = field(default_factory=list)  # past all of a tree's rows
    starts: list[int] = field(default_factory=list)  # of a tree's path in the flat lists
    rows: list[int] = field(default_factory=list)  # flat: of the positions [root, root + n)
    tokens: list[int] = field(default_factory=list)  # flat: at the positions behind those
