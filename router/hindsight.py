"""Hindsight: what a target's choice gave while it ran, to be held against what was promised of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from router.acceptance import AcceptanceModel
from router.cost_model import CostModel
from router.crowd import Crowd, Prompts
from router.goodput import Goodput
from router.shape_menu import OFF
from router.step_report import StepReport
from router.track_record import Stretch

_LEAST_STEPS = 8  # of a stretch
_LEAST_MS = 200.0
_MOST_MS = 10_000.0  # of a stretch that has too few steps
_LEAST_ON = 0.7  # share of the requests with a tree, in a step with trees
_MOST_MIXED = 0.1  # share of the steps with trees that have fewer
_MOST_LATE = 0.15  # of the trees
_LEAST_HEARD = 0.7  # of the trees, whose rounds are known here: others may be another router's
_SWING = 1.3  # times the fewest requests that a stretch may have
_LEAST_OURS = 0.85  # share of the target's requests that are planned for


class Hindsight:
    """Gathers steps and rounds into stretches of one choice. Stretches that mix choices, as after a change, or others'
    requests, tell nothing. Pure.

    Of a lone request steps with prompts are left out: there are none while it decodes. Elsewhere they are part of what
    is promised. And it has nobody to step together with.
    """

    def __init__(self, model: AcceptanceModel, costs: CostModel) -> None:
        self._model = model
        self._record = costs.record
        self._goodput = Goodput(model.menu, costs)
        self._joined = False
        self._tally = _Tally()

    def take_step(self, step: StepReport) -> None:
        """One that had rows."""
        if step.decoding > 1 or (step.decoding == 1 and not step.prefill_tokens):
            self._tally.add(step)

    def take_rounds(self, shapes: Iterable[int]) -> None:
        """Those that asked for trees, each an index of the menu."""
        self._tally.shapes.update(shapes)

    def conclude(self, num_planned: int, num_drafts: int, *, joined: bool) -> None:
        """The stretch so far counts if it was long enough, and of one choice. num_planned: requests that are planned
        for. joined: as the target was told last; a stretch in which that changed is of two ways to step."""
        tally = self._tally
        is_long = tally.spent_ms >= _LEAST_MS and tally.steps >= _LEAST_STEPS
        if is_long or tally.spent_ms > _MOST_MS or joined != self._joined:
            if is_long and joined == self._joined and tally.is_steady and num_planned >= _LEAST_OURS * tally.batch:
                self._note(tally, num_drafts)
            self._tally, self._joined = _Tally(), joined

    def _note(self, tally: _Tally, num_drafts: int) -> None:
        menu, joined = self._model.menu, self._joined and tally.most > 1
        shapes = np.array([*(tally.shapes if tally.drafted else ()), OFF])
        drafted = shapes[:-1]
        growths = set(menu.growth_index[drafted].tolist()) or {OFF}
        if len(growths) > 1:
            return
        on = tally.drafted / tally.requests
        counts = np.array([tally.shapes[shape] for shape in drafted.tolist()], float)
        share = np.append(on * counts / max(1.0, counts.sum()), 1.0 - on)
        lengths = self._model.lengths(np.zeros(1))[0]
        context_tokens = tally.context_tokens / tally.requests
        crowd = Crowd(share, np.tile(lengths, (len(shapes), 1)), context_tokens, max(num_drafts, 1))
        batch, prompts = tally.batch, tally.prompts

        def promise() -> float:
            rate = self._goodput.promised(crowd, batch, prompts, shapes)
            return rate.together if joined else rate.apart

        tokens = np.append(lengths[drafted], 1.0) @ share  # of one request's round
        nodes = np.append(menu.num_nodes[drafted], 1) @ share
        given = 1e3 * tally.requests * float(tokens) / tally.spent_ms
        self._record.note(Stretch(batch, growths.pop(), joined, float(nodes), given, promise))


@dataclass(slots=True)
class _Tally:
    """Of the steps and rounds of one stretch."""

    shapes: Counter[int] = field(default_factory=Counter)  # of rounds that asked for trees
    steps: int = 0
    mixed_steps: int = 0
    decoding: int = 0
    fewest: int = 1 << 30  # decoding in a step
    most: int = 0
    requests: int = 0
    drafted: int = 0
    context_tokens: int = 0  # of those that verified, summed over steps
    prompt_steps: int = 0
    prompt_tokens: int = 0
    spent_ms: float = 0.0

    def add(self, step: StepReport) -> None:
        self.steps += 1
        self.mixed_steps += 0 < step.drafted < _LEAST_ON * step.requests
        self.decoding += step.decoding
        self.fewest, self.most = min(self.fewest, step.decoding), max(self.most, step.decoding)
        self.requests += step.requests
        self.drafted += step.drafted
        self.context_tokens += step.context_tokens
        self.prompt_steps += step.prefill_tokens > 0
        self.prompt_tokens += step.prefill_tokens
        self.spent_ms += step.step_ms + step.wait_ms

    @property
    def batch(self) -> float:
        """Requests that decoded, on average."""
        return self.decoding / self.steps

    @property
    def prompts(self) -> Prompts:
        steps_per_s = 1e3 * self.prompt_steps / self.spent_ms
        return Prompts(steps_per_s, self.prompt_tokens / max(self.prompt_steps, 1))

    @property
    def is_steady(self) -> bool:
        """Whether one choice ran all the time, trees in time for nearly all requests or for none."""
        if self.most > _SWING * self.fewest + 1 or self.requests == 0 or self.mixed_steps > _MOST_MIXED * self.steps:
            return False
        asked = self.shapes.total()
        if asked > (1.0 + _MOST_LATE) * self.drafted:
            return False
        return asked >= _LEAST_HEARD * self.drafted and (not self.drafted or self.drafted >= _LEAST_ON * self.requests)
