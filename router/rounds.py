"""Rounds: what a target's rounds take and give by the costs alone, at many batch sizes and for many choices at once."""

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

# Of the larger of two values with the same normal distribution: its mean above theirs and the scale of a logistic
# distribution as wide, both in their standard deviations.
_LARGER_MEAN, _LARGER_SCALE = 0.56, 0.46


@dataclass(frozen=True, slots=True)
class Rates:
    """[batches, options] each. together, apart: tokens a second where all step together, and where plain requests and
    prompts step apart."""

    together: Floats
    apart: Floats

    @property
    def goodput(self) -> Floats:
        """By the better way."""
        better: Floats = np.maximum(self.together, self.apart)
        return better


@dataclass(frozen=True, slots=True)
class Cycles:
    """rates: of so many requests at every moment. together_ms, apart_ms: [batches, options], from one step to the next.
    growths, nodes: [options], a growth's number or OFF, and a request's nodes on average."""

    rates: Rates
    together_ms: Floats
    apart_ms: Floats
    growths: Ints
    nodes: Floats


class Rounds:
    """Pure arithmetic over a cost model and a menu."""

    def __init__(self, menu: ShapeMenu, costs: Costs) -> None:
        self._menu = menu
        self._costs = costs

    def cycles(self, crowd: Crowd, batches: Floats, prompts: Prompts, options: Ints) -> Cycles:
        """Every option, [options, levels] of one growth each, at every batch size."""
        drafted = options != OFF
        index = np.where(drafted, options, 0)
        nodes = np.where(drafted, self._menu.num_nodes[index], 1)
        tokens = np.where(drafted, np.take_along_axis(crowd.lengths.T, index, axis=0), 0.0)
        sizes = batches[:, None]
        on_share = drafted @ crowd.share
        num_on = sizes * on_share
        tree_nodes = ((nodes * drafted) @ crowd.share) / np.maximum(on_share, 1e-9)
        largest = options.max(axis=1)
        growths: Ints = np.where(largest == OFF, OFF, self._menu.growth_index[largest])
        work = _Round(
            growths=growths,
            nodes=nodes @ crowd.share,
            rows=sizes * (nodes @ crowd.share),
            num_on=num_on,
            num_off=sizes - num_on,
            on_tokens=sizes * (tokens @ crowd.share),
            wait=self._of_growths(self._costs.wait_ms, growths, num_on / crowd.num_drafts, tree_nodes),
        )
        if self._costs.overlaps:
            beside = functools.partial(self._costs.wait_ms, beside=1.0)
            work.half_wait = self._of_growths(beside, growths, num_on / 2 / crowd.num_drafts, tree_nodes)
            work.half_draft = self._of_growths(
                lambda growth, sessions, _: self._costs.draft_ms(growth, sessions),
                growths,
                num_on / 2 / crowd.num_drafts,
                tree_nodes,
            )
        return self._cycle(crowd, sizes, prompts, work)

    def _of_growths(
        self, ms: Callable[[TreeShape, Floats, Floats], Floats], growths: Ints, sessions: Floats, nodes: Floats
    ) -> Floats:
        """[batches, options]: ms of each option's growth, its sessions, and the nodes of its trees, [options]; 0 of
        OFF."""
        taken = np.zeros_like(sessions)
        for growth in set(growths.tolist()) - {OFF}:
            its = growths == growth
            taken[:, its] = ms(self._menu.growths[growth], sessions[:, its], nodes[its])
        return taken

    def _cycle(self, crowd: Crowd, sizes: Floats, prompts: Prompts, work: _Round) -> Cycles:
        """The two ways to run a round: all together, or the rest between the trees' steps.

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
        rates = Rates(1e3 * together, 1e3 * apart)
        return Cycles(rates, turn_ms, alone_ms, work.growths, work.nodes)

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
    """[batches, options] each, but for the options' growths and nodes."""

    growths: Ints
    nodes: Floats
    rows: Floats
    num_on: Floats
    num_off: Floats
    on_tokens: Floats
    wait: Floats  # ms
    half_wait: Floats | None = None  # of half the trees; None where a target does not overlap
    half_draft: Floats | float = 0.0  # of it, what the draft works
