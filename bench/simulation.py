"""Simulation: targets, drafts and clients over one policy, by discrete events."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np

from bench.simulated_draft import SimDraft
from bench.simulated_events import Events
from bench.simulated_request import SimRequest, Tally
from bench.simulated_router import SimRouter
from bench.simulated_target import SimTarget
from bench.simulated_world import Load, World


class Simulation:
    """One run. A request's lengths, skill and luck follow from the seed and its number, whatever the policy."""

    def __init__(
        self, world: World, router: SimRouter, *, num_targets: int = 1, num_drafts: int = 1, seed: int = 0
    ) -> None:
        self.world = world
        self.router = router
        self.events = Events()
        self.tally = Tally()
        self.drafts: Sequence[SimDraft] = [SimDraft(world, self.events) for _ in range(num_drafts)]
        self._targets = [SimTarget(number, self) for number in range(num_targets)]
        self._seed = seed
        self._arrivals = np.random.default_rng(seed)
        self._numbers = itertools.count()
        self._in_flight = 0
        self._wanted = 0.0
        self._load = Load(())

    def run(self, load: Load) -> Tally:
        """All phases of the load, one after the other; what still runs at the end is left."""
        self._load = load
        stop_s = 0.0
        for seconds, amount in load.phases:
            stop_s += seconds
            self._wanted = amount
            if load.is_open:
                self._expect_arrival(stop_s)
            else:
                self._refill()
            self.events.run(stop_s)
        return self.tally

    def ended(self, target: int, request: SimRequest) -> None:
        """A target gave all of the request's tokens."""
        self.router.end(target, request)
        self._in_flight -= 1
        if not self._load.is_open:
            self._refill()

    def _refill(self) -> None:
        while self._in_flight < self._wanted:
            self._start()

    def _expect_arrival(self, until_s: float) -> None:
        gap_s = float(self._arrivals.exponential(1.0 / self._wanted))
        if self.events.now_s + gap_s < until_s:
            self.events.at(self.events.now_s + gap_s, functools.partial(self._arrive, until_s))

    def _arrive(self, until_s: float) -> None:
        self._start()
        self._expect_arrival(until_s)

    def _start(self) -> None:
        number = next(self._numbers)
        rng = np.random.default_rng((self._seed, number))
        prompt_len, output_len = self._load.requests.draw(rng)
        skill = float(rng.normal(0.0, self.world.skill_std))
        request = SimRequest(number, prompt_len, output_len, skill, rng, self.events.now_s)
        self._in_flight += 1
        target = min(self._targets, key=lambda target: len(target.requests))
        self.router.start(target.number, request)
        self.events.after(self.world.rpc_ms / 2, functools.partial(target.submit, request))
