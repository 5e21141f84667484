"""StepPaths: what requests committed in a step, as rows of that step."""

from __future__ import annotations

from typing import NamedTuple


class StepPaths(NamedTuple):
    """Lists with an entry for each tree of the step, or flat ones. A request knows its tree (``drafted_tree``)."""

    step: int
    roots: list[int]  # positions
    stop_rows: list[int]  # past all of a tree's rows
    starts: list[int]  # of a tree's path in the flat lists
    rows: list[int]  # flat: of the positions [root, root + n)
    tokens: list[int]  # flat: at the positions behind those


NO_PATHS = StepPaths(0, [], [], [], [], [])  # of no step
