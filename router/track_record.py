"""TrackRecord: by how much choices gave more or less than the cost model promises of them, where they ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from paceline.step_table import Floats
from router.acceptance import Ints
from router.shape_menu import OFF

_PRIOR = 1.0  # weight of what is taken to be so before anything ran, where one stretch weighs 1
# Of trees, for each doubling of the batch past 32, in logarithms: the more requests, the more of them begin, end or
# wait for others. Of chains and trees an H200 gave 0.93 to 1.02 of what was promised at 1 to 32 requests, 0.83 to
# 0.93 at 64, 0.76 to 0.85 at 128, 0.68 to 0.78 at 256.
_PRIOR_OFF, _PRIOR_FROM = -0.12, 5.0
_MOST = 8.0  # weight of one cell
_SAME = 0.35  # octaves of batch and of nodes within which stretches are of one cell
_OTHER = 0.3  # of what one growth, or one way to step, shows, that holds for another
_KEEP_S = 120.0  # over which what was seen fades
_FORGOTTEN = 0.02  # weight of a cell that goes
_MOST_OFF = 0.5  # in logarithms: a pause of the machine teaches little
_CHANGED = 0.15  # of a promise, in logarithms: then what a cell shows weighs one stretch at most
_MAX_CELLS = 32


@dataclass(frozen=True, slots=True)
class Stretch:
    """What one choice gave for a while, nothing else running.

    growth: its number in the menu, or OFF. promise: what the costs say of it by now, tokens a second.
    """

    batch: float  # requests past their prompt
    growth: int
    joined: bool  # all that the target runs stepped together with the trees
    nodes: float  # a request, on average
    given: float  # tokens a second
    promise: Callable[[], float]


class TrackRecord:
    """Kernel regression (Nadaraya and Watson) over the choices that ran, with a prior that costs are about right.

    Costs are sums of parts, each fitted to what it is seen to be; what a round takes as a whole, with all that runs
    beside it, is not always their sum. Here is what is left, by batch size, growth and nodes, for the cells that were
    tried and, the less the further, those around them. When costs learn, what cells say is what is left of it then, and
    is believed the less: a machine that turned fast while one way ran would show all others as slow as they were.
    """

    def __init__(self) -> None:
        self._cells: list[_Cell] = []
        self._prior_off = _PRIOR_OFF
        self._notes: Counter[int] = Counter()  # stretches by growth
        self._next = 0
        self._faded_s: float | None = None

    def hopeful(self) -> TrackRecord:
        """The same record, by which what never ran may be as good as promised."""
        view = TrackRecord()
        view._cells, view._prior_off = self._cells, 0.0
        return view

    def num_notes(self, growth: int) -> int:
        """Of stretches with that growth, so far."""
        return self._notes[growth]

    def note(self, stretch: Stretch) -> None:
        """One that is over. Pauses and idle time are not part of what was given."""
        self._notes[stretch.growth] += 1
        promised = stretch.promise()
        if promised <= 0.0 or stretch.given <= 0.0:
            return
        batch, nodes = np.log2([stretch.batch, stretch.nodes]).tolist()
        off = min(max(float(np.log(stretch.given / promised)), -_MOST_OFF), _MOST_OFF)
        joined = stretch.joined and stretch.growth != OFF
        cell = self._cell(batch, stretch.growth, nodes, joined=joined)
        if cell is None:
            if len(self._cells) == _MAX_CELLS:
                self._cells.remove(min(self._cells, key=lambda cell: cell.worth))
            cell = _Cell(batch, stretch.growth, joined, nodes, off, 1.0, stretch.promise, promised, promised)
            self._cells.append(cell)
            return
        self._rebase(cell)
        cell.weight = min(cell.worth + 1.0, _MOST)
        cell.off += (off - cell.off) / cell.weight
        cell.batch += (batch - cell.batch) / cell.weight
        cell.nodes += (nodes - cell.nodes) / cell.weight
        cell.promise, cell.promised, cell.noted = stretch.promise, promised, promised

    def look(self, now_s: float) -> None:
        """Lets old cells fade, and one of them, in turn, see what the costs say by now."""
        if self._faded_s is not None:
            keep = float(np.exp(-max(0.0, now_s - self._faded_s) / _KEEP_S))
            for cell in self._cells:
                cell.weight *= keep
            self._cells[:] = [cell for cell in self._cells if cell.weight > _FORGOTTEN]
        self._faded_s = now_s
        if self._cells:  # a promise takes half a millisecond
            self._next = (self._next + 1) % len(self._cells)
            self._rebase(self._cells[self._next])

    def factors(self, batches: Floats, growths: Ints, nodes: Floats, *, joined: bool) -> Floats:
        """[batches, options]: what to multiply promises by. growths, nodes: [options], as a stretch has them."""
        drafts = growths != OFF
        octaves = np.maximum(0.0, np.log2(batches) - _PRIOR_FROM)
        prior = _PRIOR * self._prior_off * octaves[:, None] * drafts
        near_batch = _kernel(np.log2(batches)[:, None] - self._column("batch"))  # [batches, cells]
        near_nodes = _kernel(np.log2(nodes)[:, None] - self._column("nodes"))  # [options, cells]
        theirs = self._column("growth")
        near_growth = np.where(growths[:, None] == theirs, 1.0, _OTHER)
        near_growth[(growths[:, None] == OFF) != (theirs == OFF)] = 0.0
        near_way = np.where((joined & drafts)[:, None] == self._column("joined"), 1.0, _OTHER)
        near = near_nodes * near_growth * near_way
        weight = near_batch * self._column("worth")
        offs = np.clip(self._column("off"), -_MOST_OFF, _MOST_OFF)
        off = ((weight * offs) @ near.T + prior) / (weight @ near.T + _PRIOR)
        factors: Floats = np.exp(off)
        return factors

    def _column(self, name: str) -> Floats:
        return np.array([getattr(cell, name) for cell in self._cells], float)

    def _cell(self, batch: float, growth: int, nodes: float, *, joined: bool) -> _Cell | None:
        near = [
            cell
            for cell in self._cells
            if (cell.growth, cell.joined) == (growth, joined)
            and max(abs(cell.batch - batch), abs(cell.nodes - nodes)) <= _SAME
        ]
        return min(near, key=lambda cell: abs(cell.batch - batch) + abs(cell.nodes - nodes), default=None)

    def _rebase(self, cell: _Cell) -> None:
        promised = cell.promise()
        cell.off += float(np.log(cell.promised / promised))
        cell.promised = promised


@dataclass(slots=True)
class _Cell:
    batch: float  # octaves
    growth: int
    joined: bool
    nodes: float  # octaves
    off: float  # logarithm of what was given over what is promised
    weight: float
    promise: Callable[[], float]  # of the last stretch
    promised: float  # by it, as ``off`` has it
    noted: float  # promised when that stretch was

    @property
    def worth(self) -> float:
        """What the cell weighs: the less, the more the promise has changed since."""
        changed = float(np.log(self.promised / self.noted)) / _CHANGED
        return self.weight / (1.0 + self.weight * changed**2)


def _kernel(octaves: Floats) -> Floats:
    near: Floats = np.exp(-0.5 * octaves**2)
    return near
