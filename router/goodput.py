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
from dataclasses import dataclass

import numpy as np

from paceline.step_table import Floats
from router.acceptance import Ints
from router.cost_model import Costs
from router.crowd import Crowd, Prompts
from router.rounds import Rates, Rounds
from router.shape_menu import OFF, ShapeMenu
from router.step_costs import Batch

# Prices of a row, in tokens: from "rows are free" to "no draft is worth a row".
_PRICES = np.concatenate([[0.0], np.geomspace(0.004, 0.7, 15)])
_TREE_PRICES = np.array([0.0, 0.25, 0.5, 0.75, 1.0, 1.5])  # of a tree, whatever its size: what it takes the hosts
_PROMPT_TURNS = 1.5  # from one step to the next, until a request that comes has its first token


@dataclass(frozen=True, slots=True)
class Choice:
    """For each of the batch sizes asked: a shape's index for each skill."""

    shapes: Ints  # [batches, levels]; OFF where a level decodes plainly
    goodput: Floats  # [batches], tokens a second


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens a second of one choice: where all step together, and where plain requests and prompts step apart."""

    together: float
    apart: float

    @property
    def goodput(self) -> float:
        """By the better way."""
        return max(self.together, self.apart)

    @property
    def joined(self) -> bool:
        """Whether that is all together."""
        return self.together > self.apart


class Goodput:
    """Pure arithmetic over a cost model and a menu."""

    def __init__(self, menu: ShapeMenu, costs: Costs) -> None:
        self._menu = menu
        self._costs = costs
        self._rounds = Rounds(menu, costs)

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
        drafted = Batch(1.0, crowd.context_tokens, 1.0)
        spent = self._costs.step_ms(menu.num_nodes.astype(float), drafted)
        for growth, members in zip(menu.growths, menu.of_growth, strict=True):
            nodes = menu.num_nodes[members]
            spent[members] += self._costs.wait_ms(growth, np.ones(len(members)), nodes)
        plain = np.full((len(crowd.share), 1), 1.0) / self._costs.step_ms(np.ones(1), batch)
        growths, nodes = np.append(menu.growth_index, OFF), np.append(menu.num_nodes, 1).astype(float)
        rates: Floats = 1e3 * np.concatenate([crowd.lengths / spent, plain], axis=1)
        return rates * self._costs.record.factors(np.ones(1), growths, nodes, joined=False)

    def of(self, crowd: Crowd, batch: float, prompts: Prompts, shapes: Ints) -> Rate:
        """What one choice, [levels], gives at one batch size."""
        return _only(self._rate(crowd, np.array([batch]), prompts, shapes[None]))

    def promised(self, crowd: Crowd, batch: float, prompts: Prompts, shapes: Ints) -> Rate:
        """The same by the costs alone, of so many requests at every moment."""
        return _only(self._rounds.cycles(crowd, np.array([batch]), prompts, shapes[None]).rates)

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

    def _rate(self, crowd: Crowd, batches: Floats, prompts: Prompts, options: Ints) -> Rates:
        """Every option, [options, levels] of one growth each, at every batch size."""
        cycles = self._rounds.cycles(crowd, batches, prompts, options)
        factors = functools.partial(self._costs.record.factors, batches, cycles.growths, cycles.nodes)
        return Rates(
            cycles.rates.together * factors(joined=True) / _in_flight(batches, prompts, cycles.together_ms),
            cycles.rates.apart * factors(joined=False) / _in_flight(batches, prompts, cycles.apart_ms),
        )


def _only(rates: Rates) -> Rate:
    """Of one option at one batch size."""
    return Rate(rates.together.item(), rates.apart.item())


def _in_flight(batches: Floats, prompts: Prompts, turn_ms: Floats) -> Floats:
    """[batches, options]: requests for each that decodes: one that comes waits for half a turn on average, and its
    prompt takes one, so that of the same requests in flight fewer decode where turns are long."""
    shares: Floats = 1.0 + _PROMPT_TURNS * prompts.steps_per_s * turn_ms / 1e3 / batches[:, None]
    return shares
