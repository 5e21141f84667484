"""PlanRows: the shapes of every batch size and skill, taken over, held, and tried."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from paceline.step_table import Floats
from paceline.types import TreeShape
from router.acceptance import Ints
from router.cost_model import CostModel
from router.crowd import Crowd, Prompts
from router.goodput import Goodput, Rate
from router.shape_menu import OFF, ShapeMenu

BATCHES = np.array([1.0, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512])
SKILLS = np.linspace(-1.5, 1.5, 7)  # requests are told apart by the nearest of these
_TRIAL_NOTES = 2  # stretches of a trial; the first one may have begun before it
_DOUBT = 0.5  # of a margin, for each doubling or halving between two batch sizes


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """window_s: a request's setting changes at most once in it. margin: gain that a change must promise, a share.
    patience: what gains past the margin must add up to, one a look, for a change.

    start_margin: the same where nobody has a tree: both ways are as good as each other around some batch size, there
    noise would start trees and end them again, and a change costs every request a round or two.
    """

    window_s: float = 0.5
    margin: float = 0.02
    patience: float = 0.05
    start_margin: float = 0.06
    probe_loss: float = 0.01  # share of the goodput that may go into asking what drafts would be accepted now
    default: TreeShape | None = None  # what to begin with, unless the calibration promises more than trust
    trust: float = 0.2  # gain that an untested calibration must promise


class PlanRows:
    """shapes: [batches, levels], a shape's index or OFF. Pure.

    At one request each level is planned for itself, for the request is all there is; at more, all levels together.
    """

    def __init__(self, menu: ShapeMenu, costs: CostModel, settings: PlannerSettings) -> None:
        self.shapes = np.full((len(BATCHES), len(SKILLS)), OFF)
        self._gains = np.zeros(len(BATCHES))  # of the best over what is held, past the margin, of the last looks
        self._trial: _Trial | None = None  # not of what was tried in the place of plain decoding
        self._goodput = Goodput(menu, costs)
        self._hopeful = Goodput(menu, costs.hopeful)
        self._menu = menu
        self._record = costs.record
        self._settings = settings

    def begin(self, crowd: Crowd, prompts: Prompts) -> None:
        """The first shapes: the best by the calibration alone, or the default where that is not far behind."""
        self.shapes[:] = self._goodput.best(crowd, BATCHES, prompts).shapes
        alone, levels = self._goodput.alone(crowd), np.arange(len(SKILLS))
        self.shapes[0] = best = _best_of(alone)
        number = OFF if self._settings.default is None else self._menu.index.get(self._settings.default, OFF)
        if number == OFF:
            return
        default = np.full_like(self.shapes, number)
        factor = 1.0 + self._settings.trust
        rates = self._goodput.of_rows(crowd, BATCHES, prompts, self.shapes)
        near = factor * self._goodput.of_rows(crowd, BATCHES, prompts, default) >= rates
        self.shapes[near] = number
        self.shapes[0] = np.where(factor * alone[:, number] >= alone[levels, best], number, best)

    def revise(self, crowd: Crowd, prompts: Prompts, batch: float) -> bool:
        """Takes over what has promised more for long enough; whether there was any.

        What is promised varies with what happens to run, and after a change requests have trees of two kinds for a
        while, and the target tries both ways to run rounds anew: so gains add up, less the margin, and count once their
        sum is worth a change (Page, "Continuous inspection schemes", 1954). A large one is followed at once, a small
        one when it lasts.

        batch: the size that runs. What it teaches of others is the less sure the further they are: their margins are
        larger, so that what was learnt there itself holds until it can be learnt anew.
        """
        settings, is_back = self._settings, self._judge_trial(crowd, prompts)
        doubt = 1.0 + _DOUBT * np.abs(np.log2(BATCHES / batch))
        held = self._goodput.of_rows(crowd, BATCHES, prompts, self.shapes)
        new = self._goodput.best(crowd, BATCHES, prompts)
        is_off = (self.shapes == OFF).all(axis=1)
        margin = np.where(is_off, settings.start_margin, settings.margin) * doubt
        self._gains = np.maximum(0.0, self._gains + np.log(new.goodput / held) - margin)
        better = (new.shapes != self.shapes).any(axis=1) & (self._gains > settings.patience * doubt)
        better[0], self._gains[0] = False, 0.0
        self.shapes[better] = new.shapes[better]
        self._gains[better] = 0.0
        alone, levels = self._goodput.alone(crowd), np.arange(len(SKILLS))
        best = _best_of(alone)
        gains = alone[levels, best] > (1.0 + margin[0]) * alone[levels, self.shapes[0]]
        self.shapes[0] = np.where(gains, best, self.shapes[0])
        return bool(better.any() or gains.any()) or is_back

    def hope(self, crowd: Crowd, row: int, prompts: Prompts, levels: Iterable[int]) -> bool:
        """Tries at one row what would be better if it took as little as it may; whether there is such a thing.

        levels: of the requests that are there. What the trial shows decides at a ``revise`` soon after: if that is not
        more than what was held gives, it is held again.
        """
        factor = 1.0 + self._settings.margin
        if row == 0:
            hoped, held = self._hopeful.alone(crowd), self._goodput.alone(crowd)
            best = _best_of(hoped)
            tried = [
                level for level in levels if hoped[level, best[level]] > factor * held[level, self.shapes[0, level]]
            ]
            self.shapes[0, tried] = best[tried]
            return bool(tried)
        if (self.shapes[row] == OFF).all():
            factor = 1.0 + self._settings.start_margin
        hope = self._hopeful.best(crowd, BATCHES[row : row + 1], prompts)
        is_same = bool((hope.shapes[0] == self.shapes[row]).all())
        if is_same or hope.goodput[0] <= factor * self.rate(crowd, BATCHES[row], prompts, row).goodput:
            return False
        growth = self._growth_of(hope.shapes[0])
        if self._growth_of(self.shapes[row]) != OFF:
            self._trial = _Trial(row, self.shapes[row].copy(), growth, self._record.num_notes(growth) + _TRIAL_NOTES)
        self.shapes[row], self._gains[row] = hope.shapes[0], 0.0
        return True

    def rate(self, crowd: Crowd, batch: float, prompts: Prompts, row: int) -> Rate:
        """What one row's shapes give at a batch size."""
        return self._goodput.of(crowd, batch, prompts, self.shapes[row])

    def rate_plain(self, crowd: Crowd, batch: float, prompts: Prompts) -> float:
        """Tokens a second without speculation."""
        return self._goodput.of(crowd, batch, prompts, np.full(len(SKILLS), OFF)).goodput

    def rate_one(self, crowd: Crowd, batch: float, prompts: Prompts, shape: int) -> float:
        """Tokens a second where the first level takes the shape and all others decode plainly."""
        shapes = np.full(len(SKILLS), OFF)
        shapes[0] = shape
        return self._goodput.of(crowd, batch, prompts, shapes).goodput

    def may_pay(self, crowd: Crowd, batch: float, prompts: Prompts) -> bool:
        """Whether any tree would be worth its time in that crowd, if it took as little as it may."""
        return bool((self._hopeful.best(crowd, np.array([batch]), prompts).shapes != OFF).any())

    def _judge_trial(self, crowd: Crowd, prompts: Prompts) -> bool:
        """Whether the one under way is over, and in vain. MUTATES shapes then."""
        trial = self._trial
        if trial is None or self._record.num_notes(trial.growth) < trial.num_notes:
            return False
        self._trial, row, batch = None, trial.row, BATCHES[trial.row]
        before = self._goodput.of(crowd, batch, prompts, trial.before).goodput
        has_left = self._growth_of(self.shapes[row]) != trial.growth
        if has_left or self.rate(crowd, batch, prompts, row).goodput > before:
            return False
        self.shapes[row], self._gains[row] = trial.before, 0.0
        return True

    def _growth_of(self, shapes: Ints) -> int:
        """Of one row's."""
        largest = int(shapes.max())
        return OFF if largest == OFF else int(self._menu.growth_index[largest])


@dataclass(frozen=True, slots=True)
class _Trial:
    """Of a row's shapes: what was held before; over when so many stretches of the growth were seen."""

    row: int
    before: Ints  # [levels]
    growth: int
    num_notes: int


def row_at(batch: float) -> int:
    """The row whose batch size is nearest, on a logarithmic scale."""
    return int(np.abs(np.log(BATCHES / batch)).argmin())


def _best_of(rates: Floats) -> Ints:
    """[levels]: of [levels, shapes + 1], whose last column is OFF."""
    top = rates.argmax(axis=1)
    best: Ints = np.where(top == rates.shape[1] - 1, OFF, top)
    return best
