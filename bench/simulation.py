"""Simulation: targets, drafts and clients over one policy, by discrete events."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Sequence

import numpy as np

from bench.load import Load
from bench.simulated_draft import SimDraft
from bench.simulated_events import Events
from bench.simulated_memory import new_memory
from bench.simulated_request import SimRequest, Tally
from bench.simulated_router import SimRouter
from bench.simulated_target import SimTarget
from bench.simulated_world import World

_BETWEEN_S = 0.5  # two simulations of the same services
_OF_DRAFTS = 1  # in the seeds of what is random about them


class Simulation:
    """One run. A request's lengths, skill and luck follow from the seed and its number, whatever the policy."""

    def __init__(
        self, world: World, router: SimRouter, *, num_targets: int = 1, num_drafts: int = 1, seed: int = 0
    ) -> None:
        self.world = world
        self.router = router
        self.events = Events()
        self.tally = Tally()
        self.drafts: Sequence[SimDraft] = [
            SimDraft(world, self.events, np.random.default_rng((_OF_DRAFTS, seed, number)))
            for number in range(num_drafts)
        ]
        self._targets = [SimTarget(number, self, new_memory(world, num_drafts)) for number in range(num_targets)]
        self._seed = seed
        self._numbers = itertools.count()
        self._running: dict[int, tuple[SimRequest, SimTarget]] = {}  # by number, in the order of their start
        self._wanted = 0
        self._is_open = False

    def resume(self, earlier: Simulation) -> None:
        """The same services go on: the clock does, and targets know what they knew at the earlier simulation's end."""
        self.events.now_s = earlier.events.now_s + _BETWEEN_S
        for target, before in zip(self._targets, earlier._targets, strict=True):
            target.memory = copy.deepcopy(before.memory)

    def run(self, load: Load) -> Tally:
        """All phases of the load, one after the other; what still runs at the end is cut off."""
        self._is_open = load.is_open
        if load.is_open:
            for at_s in load.arrivals(self._seed):
                self.events.at(self.events.now_s + at_s, self._start)
        else:
            self._begin_streams(round(load.phases[0][1]))
        stop_s = self.tally.began_s = self.events.now_s
        for seconds, amount in load.phases:
            stop_s += seconds
            if not load.is_open:
                self._wanted = round(amount)
                self._cut_surplus()
                self._refill()
            self.events.run(stop_s)
        self._wanted = 0
        self._cut_surplus()
        return self.tally

    def ended(self, target: int, request: SimRequest) -> None:
        """A target gave all of the request's tokens."""
        self.router.end(target, request)
        del self._running[request.number]
        self.tally.left(request, self.events.now_s)
        if not self._is_open:
            self._refill()

    def _begin_streams(self, amount: int) -> None:
        """The first are allowed a part of their output up to all, so that they end one after another."""
        self._wanted = amount
        for i in range(amount):
            self._start((i + 1) / amount)
        self.events.run_until(lambda: len(self.tally.ttft_ms) >= amount)

    def _refill(self) -> None:
        while len(self._running) < self._wanted:
            self._start()

    def _cut_surplus(self) -> None:
        """The newest go."""
        for number in list(self._running)[self._wanted :]:
            request, target = self._running.pop(number)
            self.router.end(target.number, request)
            self.tally.left(request, self.events.now_s)
            if number in target.requests:
                target.drop(request)

    def _start(self, share: float = 1.0) -> None:
        number = next(self._numbers)
        rng = np.random.default_rng((self._seed, number))
        drawn = self.world.requests.draw(number, rng, share=share)
        skill = float(rng.normal(0.0, self.world.skill_std)) if drawn.skill is None else drawn.skill
        request = SimRequest(number, drawn.prompt_len, drawn.output_len, skill, rng, self.events.now_s)
        target = min(self._targets, key=lambda target: len(target.requests))
        self._running[number] = request, target
        self.router.start(target.number, request)
        self.events.after(self.world.arrival_ms, functools.partial(self._submit, request))

    def _submit(self, request: SimRequest) -> None:
        if request.number in self._running:
            self._running[request.number][1].submit(request)
