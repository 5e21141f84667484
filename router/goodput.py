"""Which trees give the most tokens a second: the batch as a whole, at every batch size at once.

After SmartSpec (Liu et al., "Optimizing Speculative Decoding for Serving LLMs Using Goodput", arXiv 2406.14066), which
picks one proposal length for a whole batch by expected accepted tokens over modelled time, and its successor TurboSpec,
which adds feedback. The same here: goodput as the objective, an offline cost model corrected online, an average of
acceptance. Different: trees instead of lengths; each request its own size, found by one price for a row; a draft
behind a network whose time adds to the step, unless rounds overlap; prompts that share the steps; and the answer for
every batch size, for the target to follow without asking.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from paceline.step_table import Floats
from paceline.types import TreeShape
from router.acceptance import Ints
from router.cost_model import Costs
from router.crowd import Crowd, Prompts
from router.shape_menu import OFF, ShapeMenu
from router.step_costs import Batch

# Prices of a row, in tokens: from "rows are free" to "no draft is worth a row".
_PRICES = np.concatenate([[0.0], np.geomspace(0.004, 0.7, 15)])
_TREE_PRICES = np.array([0.0, 0.25, 0.5, 0.75, 1.0, 1.5])  # of a tree, whatever its size: what it takes the hosts
# Of the larger of two values with the same normal distribution: its mean above theirs and the scale of a logistic
# distribution as wide, both in their standard deviations.
_LARGER_MEAN, _LARGER_SCALE = 0.56, 0.46
_PROMPT_TURNS = 1.5  # from one step to the next, until a request that comes has its first token


@dataclass(frozen=True, slots=True)
class Choice:
    """For each of the batch sizes asked: a shape's index for each skill."""

    shapes: Ints  # [batches, levels]; OFF where a level decodes plainly
    goodput: Floats  # [batches], tokens a second


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens a second of one choice: where all step together, and where plain requests and prompts step apart.

    promised: the same by the costs alone, of so many requests at every moment.
    """

    together: float
    apart: float
    promised_together: float
    promised_apart: float

    @property
    def goodput(self) -> float:
        """By the better way."""
        return max(self.together, self.apart)

    @property
    def joined(self) -> bool:
        """Whether that is all together."""
        return self.together > self.apart

    @property
    def promised(self) -> float:
        """By the better way, before any record."""
        return max(self.promised_together, self.promised_apart)


class Goodput:
    """Pure arithmetic over a cost model and a menu."""

    def __init__(self, menu: ShapeMenu, costs: Costs) -> None:
        self._menu = menu
        self._costs = costs

    def best(self, crowd: Crowd, batches: Floats, prompts: Prompts) -> Choice:
        """The choice of most tokens a second at each batch size, among all growths, prices of a row and off."""
        options = self._options(crowd)
        rated = self._rate(crowd, batches, prompts, options).goodput
        top = rated.argmax(axis=1)
        return Choice(options[top], rated[np.arange(len(batches)), top])

    def alone(self, crowd: Crowd) -> Floats:
        """[levels, shapes + 1]: tokens a second of the only request, by its shape; the last, at OFF, decodes plainly.

        Prompts are left out: nobody else is there to have one.
        """
        menu, batch = self._menu, Batch(1.0, crowd.context_tokens)
        waits = np.array([float(self._costs.wait_ms(growth, np.ones(1))[0]) for growth in menu.growths])
        drafted = Batch(1.0, crowd.context_tokens, 1.0)
        spent = self._costs.step_ms(menu.num_nodes.astype(float), drafted) + waits[menu.growth_index]
        plain = np.full((len(crowd.share), 1), 1.0) / self._costs.step_ms(np.ones(1), batch)
        growths, nodes = np.append(menu.growth_index, OFF), np.append(menu.num_nodes, 1).astype(float)
        rates: Floats = 1e3 * np.concatenate([crowd.lengths / spent, plain], axis=1)
        return rates * self._costs.record.factors(np.ones(1), growths, nodes, joined=False)

    def of(self, crowd: Crowd, batch: float, prompts: Prompts, shapes: Ints) -> Rate:
        """What one choice, [levels], gives at one batch size."""
        rated = self._rate(crowd, np.array([batch]), prompts, shapes[None])
        ways = (rated.together, rated.apart, rated.promised_together, rated.promised_apart)
        return Rate(*(float(way[0, 0]) for way in ways))

    def of_rows(self, crowd: Crowd, batches: Floats, prompts: Prompts, shapes: Ints) -> Floats:
        """[batches], tokens a second: the choice shapes[i], of [batches, levels], at batches[i]."""
        return self._rate(crowd, batches, prompts, shapes).goodput.diagonal()

    def _options(self, crowd: Crowd) -> Ints:
        """[options, levels]: off, and for each growth, price of a tree and price of a row what each level takes."""
        num_levels = len(crowd.share)
        parts = [np.full((1, num_levels), OFF)]
        for members in self._menu.of_growth:
            worth = (
                crowd.lengths[:, members] - 1.0 - _PRICES[:, None, None] * (self._menu.num_nodes[members] - 1.0)
            )  # [prices, levels, sizes]
            pays = worth.max(axis=2) > _TREE_PRICES[:, None, None]  # [prices of a tree, prices, levels]
            parts.append(np.where(pays, members[worth.argmax(axis=2)], OFF).reshape(-1, num_levels))
        return np.unique(np.concatenate(parts), axis=0)

    def _rate(self, crowd: Crowd, batches: Floats, prompts: Prompts, options: Ints) -> _Rated:
        """Every option, [options, levels] of one growth each, at every batch size."""
        drafted = options != OFF
        index = np.where(drafted, options, 0)
        nodes = np.where(drafted, self._menu.num_nodes[index], 1)
        tokens = np.where(drafted, np.take_along_axis(crowd.lengths.T, index, axis=0), 0.0)
        sizes = batches[:, None]
        num_on = sizes * (drafted @ crowd.share)
        largest = options.max(axis=1)
        work = _Round(
            rows=sizes * (nodes @ crowd.share),
            num_on=num_on,
            num_off=sizes - num_on,
            on_tokens=sizes * (tokens @ crowd.share),
            wait=self._of_growths(self._costs.wait_ms, largest, num_on / crowd.num_drafts),
        )
        if self._costs.overlaps:
            beside = functools.partial(self._costs.wait_ms, beside=1.0)
            work.half_wait = self._of_growths(beside, largest, num_on / 2 / crowd.num_drafts)
            work.half_draft = self._of_growths(self._costs.draft_ms, largest, num_on / 2 / crowd.num_drafts)
        rated = self._cycle(crowd, sizes, prompts, work)
        factors = functools.partial(self._costs.record.factors, batches, self._growths(largest), nodes @ crowd.share)
        rated.together *= factors(joined=True)
        rated.apart *= factors(joined=False)
        return rated

    def _growths(self, largest: Ints) -> Ints:
        """[options]: number of each option's growth, or OFF."""
        growths: Ints = np.where(largest == OFF, OFF, self._menu.growth_index[largest])
        return growths

    def _of_growths(self, ms: Callable[[TreeShape, Floats], Floats], largest: Ints, sessions: Floats) -> Floats:
        """[batches, options]: ms of each option's growth, 0 of OFF. largest: [options], a shape of each, or OFF."""
        taken = np.zeros_like(sessions)
        growths = self._growths(largest)
        for growth in set(growths.tolist()) - {OFF}:
            its = growths == growth
            taken[:, its] = ms(self._menu.growths[growth], sessions[:, its])
        return taken

    def _cycle(self, crowd: Crowd, sizes: Floats, prompts: Prompts, work: _Round) -> _Rated:
        """Tokens a second of the two ways to run a round: all together, or the rest between the trees' steps.

        Where the target overlaps, all together may be in halves: then it takes the shorter of the two rounds.
        """
        trees = Batch(sizes, sizes * crowd.context_tokens, work.num_on)
        others = Batch(sizes, sizes * crowd.context_tokens)
        step = self._costs.step_ms
        bare = step(work.rows, trees)
        by_draft = self._costs.follow_ms * prompts.tokens_per_step * work.num_on / sizes
        by_prompt = step(work.rows + prompts.tokens_per_step, trees) - bare + by_draft
        prompt_share = _share(prompts, bare + work.wait, by_prompt)
        verify = bare + prompt_share * by_prompt
        round_ms = verify + work.wait
        turn_ms = round_ms
        if work.half_wait is not None:
            halves = self._halves(trees, prompts, work, by_draft)
            in_halves = (work.num_on >= 2) & (halves < round_ms)
            round_ms = np.where(in_halves, halves, round_ms)
            turn_ms = np.where(in_halves, halves / 2, round_ms)
        together = (work.on_tokens + work.num_off) / round_ms
        # Apart: plain requests, or a prompt, step while the trees are on their way.
        has_plain = work.num_off > 1e-9 * sizes
        idle = step(work.num_off, others)
        between = np.where(has_plain, np.maximum(1.0, np.ceil(work.wait / idle)), prompt_share)
        alone = step(work.num_off + prompts.tokens_per_step, others) + by_draft
        filler = np.where(has_plain, idle + prompt_share * by_prompt, alone)
        spent = verify + between * filler + np.where(has_plain, 0.0, (1.0 - prompt_share) * work.wait)
        apart = (work.on_tokens + (1.0 + between * has_plain) * work.num_off) / spent
        alone_ms = spent / (1.0 + between)
        apart, alone_ms = (np.where(work.num_on == 0, *pair) for pair in ((together, apart), (turn_ms, alone_ms)))
        return _Rated(
            together=1e3 * together / self._in_flight(sizes, prompts, turn_ms),
            apart=1e3 * apart / self._in_flight(sizes, prompts, alone_ms),
            promised_together=1e3 * together,
            promised_apart=1e3 * apart,
        )

    def _in_flight(self, sizes: Floats, prompts: Prompts, turn_ms: Floats) -> Floats:
        """[batches, options]: requests for each that decodes: one that comes waits for half a turn on average, and its
        prompt takes one, so that of the same requests in flight fewer decode where turns are long."""
        shares: Floats = 1.0 + _PROMPT_TURNS * prompts.steps_per_s * turn_ms / 1e3 / sizes
        return shares

    def _halves(self, whole: Batch, prompts: Prompts, work: _Round, by_draft: Floats) -> Floats:
        """[batches, options]: ms of a round in which each half, with the half of all else, is verified while the trees
        of the other are on their way. by_draft: that a prompt adds beside its step.

        A half's trees are due when the other's step ends. If they come later that step's successor waits, and the
        other half's trees win as much time: so a round is a step and the longest of a step and both halves' ways, which
        spread around their mean. Ways that are mostly shorter than a step cost something, too.
        """
        assert work.half_wait is not None
        half = Batch(whole.requests / 2, whole.context_tokens / 2, whole.trees / 2, work.half_draft)
        bare = self._costs.step_ms(work.rows / 2, half)
        steps_ms = np.maximum(bare, (bare + work.half_wait) / 2)  # from one step to the next
        by_prompt = self._costs.step_ms(work.rows / 2 + prompts.tokens_per_step, half) - bare + by_draft
        verify = bare + _share(prompts, steps_ms, by_prompt) * by_prompt
        spread = np.maximum(self._costs.wait_spread * work.half_wait, 1e-3)
        way = work.half_wait + self._costs.tree_ms * half.trees + _LARGER_MEAN * spread
        scale = _LARGER_SCALE * spread
        round_ms: Floats = 2.0 * verify + scale * np.logaddexp(0.0, (way - verify) / scale)
        return round_ms


def _share(prompts: Prompts, between_ms: Floats, by_prompt: Floats) -> Floats:
    """Of steps, those with prompts: each has as many as come from one step to the next, which they make longer."""
    per_ms = prompts.steps_per_s / 1e3
    share: Floats = np.minimum(1.0, per_ms * between_ms / np.maximum(1.0 - per_ms * by_prompt, 1e-3))
    return share


@dataclass(slots=True)
class _Round:
    """[batches, options] each."""

    rows: Floats
    num_on: Floats
    num_off: Floats
    on_tokens: Floats
    wait: Floats  # ms
    half_wait: Floats | None = None  # of half the trees; None where a target does not overlap
    half_draft: Floats | float = 0.0  # of it, what the draft works


@dataclass(slots=True)
class _Rated:
    """[batches, options] each."""

    together: Floats
    apart: Floats
    promised_together: Floats
    promised_apart: Floats

    @property
    def goodput(self) -> Floats:
        better: Floats = np.maximum(self.together, self.apart)
        return better
