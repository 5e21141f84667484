"""Which trees give the most tokens a second: the batch as a whole, at every batch size at once.

After SmartSpec (Liu et al., "Optimizing Speculative Decoding for Serving LLMs Using Goodput", arXiv 2406.14066), which
picks one proposal length for a whole batch by expected accepted tokens over modelled time, and its successor TurboSpec,
which adds feedback. The same here: goodput as the objective, an offline cost model corrected online, an average of
acceptance. Different: trees instead of lengths; each request its own size, found by one price for a row; a draft
behind a network whose time adds to the step; prompts that share the steps; and the answer for every batch size, for
the target to follow without asking.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from router.acceptance import Ints
from router.cost_model import Batch, CostModel
from router.cost_tables import Floats
from router.shape_menu import OFF, ShapeMenu

# Prices of a row, in tokens: from "rows are free" to "no draft is worth a row".
_PRICES = np.concatenate([[0.0], np.geomspace(0.004, 0.7, 15)])


@dataclass(frozen=True, slots=True)
class Prompts:
    """What arrives beside decoding: steps with prompt tokens a second, and their tokens."""

    steps_per_s: float = 0.0
    tokens_per_step: float = 0.0


@dataclass(frozen=True, slots=True)
class Crowd:
    """The requests of one target, by skill. share sums to 1; lengths are the acceptance model's at each skill."""

    share: Floats  # [levels]
    lengths: Floats  # [levels, shapes]
    context_tokens: float  # of one request
    num_drafts: int  # that the sessions are spread over


@dataclass(frozen=True, slots=True)
class Choice:
    """For each of the batch sizes asked: a shape's index for each skill."""

    shapes: Ints  # [batches, levels]; OFF where a level decodes plainly
    goodput: Floats  # [batches], tokens a second


@dataclass(frozen=True, slots=True)
class Rate:
    """goodput: tokens a second, where all step together (joined) or apart, whichever gives more."""

    goodput: float
    joined: bool


class Goodput:
    """Pure arithmetic over a cost model and a menu."""

    def __init__(self, menu: ShapeMenu, costs: CostModel) -> None:
        self._menu = menu
        self._costs = costs

    def best(self, crowd: Crowd, batches: Floats, prompts: Prompts) -> Choice:
        """The choice of most tokens a second at each batch size, among all growths, prices of a row and off."""
        count, levels = len(batches), len(crowd.share)
        off = np.full((1, levels), OFF)
        shapes = np.full((count, levels), OFF)
        goodput = self._rate(crowd, batches, prompts, off).goodput[:, 0]
        for growth, members in enumerate(self._menu.of_growth):
            options = self._options(crowd, members)
            rated = self._rate(crowd, batches, prompts, options, growth=growth).goodput
            top = rated.argmax(axis=1)
            value = rated[np.arange(count), top]
            better = value > goodput
            goodput = np.where(better, value, goodput)
            shapes[better] = options[top[better]]
        return Choice(shapes, goodput)

    def of(self, crowd: Crowd, batch: float, prompts: Prompts, shapes: Ints) -> Rate:
        """What one choice, [levels], gives at one batch size."""
        growth = self._growth_of(shapes)
        rated = self._rate(crowd, np.array([batch]), prompts, shapes[None], growth=growth)
        return Rate(float(rated.goodput[0, 0]), bool(rated.joined[0, 0]))

    def _growth_of(self, shapes: Ints) -> int | None:
        for index in shapes.tolist():
            if index != OFF:
                return next(g for g, members in enumerate(self._menu.of_growth) if index in members)
        return None

    def _options(self, crowd: Crowd, members: Ints) -> Ints:
        """[options, levels]: for each price of a row, what each level takes of one growth."""
        num_nodes = self._menu.num_nodes[members]
        gain = crowd.lengths[:, members] - 1.0
        worth = gain[None] - _PRICES[:, None, None] * (num_nodes - 1.0)
        pick = worth.argmax(axis=2)
        taken = np.take_along_axis(worth, pick[:, :, None], axis=2)[:, :, 0]
        return np.unique(np.where(taken > 0.0, members[pick], OFF), axis=0)

    def _rate(
        self, crowd: Crowd, batches: Floats, prompts: Prompts, options: Ints, *, growth: int | None = None
    ) -> _Rated:
        """Every option, [options, levels] of one growth, at every batch size."""
        drafted = options != OFF
        index = np.where(drafted, options, 0)
        nodes = np.where(drafted, self._menu.num_nodes[index], 1)
        tokens = np.where(drafted, np.take_along_axis(crowd.lengths, index.T, axis=1).T, 1.0)
        sizes = batches[:, None]
        num_on = sizes * (drafted @ crowd.share)
        num_off = sizes - num_on
        rows = sizes * (nodes @ crowd.share)
        on_tokens = sizes * ((tokens * drafted) @ crowd.share)
        wait = np.zeros_like(rows)
        if growth is not None:
            wait = self._costs.wait_ms(self._menu.growths[growth], num_on / crowd.num_drafts)
            wait = np.where(num_on > 0, wait, 0.0)
        return self._cycle(crowd, sizes, prompts, _Round(rows, num_on, num_off, on_tokens, wait))

    def _cycle(self, crowd: Crowd, sizes: Floats, prompts: Prompts, work: _Round) -> _Rated:
        """Tokens a second of the two ways to run a round: all together, or the rest between the trees' steps."""
        batch = Batch(sizes, sizes * crowd.context_tokens)

        def step(rows: Floats) -> Floats:
            return self._costs.step_ms(rows, batch)

        bare = step(work.rows)
        prompt_share = np.minimum(1.0, prompts.steps_per_s * (bare + work.wait) / 1e3)
        full = step(work.rows + prompts.tokens_per_step)
        verify = bare + prompt_share * (full - bare)
        together = (work.on_tokens + work.num_off) / (verify + work.wait)
        # Apart: plain requests, or a prompt, step while the trees are on their way.
        idle = np.maximum(step(work.num_off), 1e-6)
        has_plain = work.num_off > 0
        between = np.where(has_plain, np.maximum(1.0, np.ceil(work.wait / idle)), prompt_share)
        filler = np.where(has_plain, idle + prompt_share * (full - bare), step(work.num_off + prompts.tokens_per_step))
        spent = verify + between * filler + np.where(has_plain, 0.0, (1.0 - prompt_share) * work.wait)
        apart = (work.on_tokens + (1.0 + between * has_plain) * work.num_off) / spent
        plain = work.num_on == 0
        apart = np.where(plain, together, apart)
        joined = (together > apart) & ~plain
        return _Rated(1e3 * np.maximum(together, apart), joined)


@dataclass(frozen=True, slots=True)
class _Round:
    """[batches, options] each."""

    rows: Floats
    num_on: Floats
    num_off: Floats
    on_tokens: Floats
    wait: Floats  # ms


@dataclass(frozen=True, slots=True)
class _Rated:
    goodput: Floats  # [batches, options]
    joined: NDArray[np.bool_]
