"""Discrete events: targets that step, drafts that propose, clients that come and go. The clock is its own."""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bench.simulated_world import Load, World
from paceline.types import TreeShape


class Events:
    """What happens when, in order."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (max(time_s, self.now_s), next(self._number), action))

    def run(self, until_s: float) -> None:
        while self._heap and self._heap[0][0] <= until_s:
            self.now_s, _, action = heapq.heappop(self._heap)
            action()
        self.now_s = until_s


@dataclass(slots=True, eq=False)
class SimRequest:
    """One request on its target."""

    number: int
    prompt_len: int
    output_len: int
    skill: float
    arrived_s: float
    committed: int = 0
    emitted: int = 0
    first_s: float = 0.0
    shape: TreeShape | None = None  # of the ask that is open, or of the tree that came
    tree_is_here: bool = False
    deadline_s: float = -1.0
    is_asking: bool = False
    rounds: int = 0
    drafted_rounds: int = 0
    drafted_tokens: int = 0

    @property
    def is_decoding(self) -> bool:
        return self.emitted > 0

    @property
    def context(self) -> int:
        return self.committed + self.emitted


@dataclass(frozen=True, slots=True)
class StepDone:
    """What a target reports of a step."""

    target: int
    rows: int
    prefill_tokens: int
    requests: int
    drafted: int
    step_ms: float
    wait_ms: float
    decoding: int
    context_tokens: int
    rounds: list[tuple[int, TreeShape, int, bool]]  # request, shape, accepted, late


@dataclass(slots=True)
class SimDraft:
    """One draft: takes all that waits into one batch; growths one after the other."""

    world: World
    events: Events
    inbox: list[tuple[TreeShape, SimRequest, Callable[[], None]]] = field(default_factory=list)
    is_busy: bool = False
    busy_ms: float = 0.0

    def ask(self, asks: list[tuple[TreeShape, SimRequest, Callable[[], None]]]) -> None:
        self.inbox += asks
        if not self.is_busy:
            self._start()

    def _start(self) -> None:
        batch, self.inbox = self.inbox, []
        counts: dict[TreeShape, int] = {}
        for shape, _, _ in batch:
            counts[self.growth(shape)] = counts.get(self.growth(shape), 0) + 1
        spent = sum(self.world.proposals.of(growth).at_one(n) for growth, n in counts.items())
        self.is_busy = True
        self.busy_ms += spent

        def done() -> None:
            self.is_busy = False
            for _, _, answer in batch:
                answer()
            if self.inbox:
                self._start()

        self.events.at(self.events.now_s + spent / 1e3, done)

    def growth(self, shape: TreeShape) -> TreeShape:
        """The smallest measured growth that covers the shape."""

        def covers(growth: TreeShape) -> bool:
            return (
                growth.num_steps >= shape.num_steps
                and growth.eagle_topk >= shape.eagle_topk
                and growth.num_draft_tokens >= shape.num_draft_tokens
            )

        fitting = [growth for growth in self.world.proposals.growths if covers(growth)]
        return min(fitting, key=lambda growth: (growth.num_steps, growth.eagle_topk, growth.num_draft_tokens))


class Router:
    """What the simulation asks and tells; a policy implements it."""

    def start(self, target: int, request: SimRequest) -> None: ...

    def end(self, target: int, request: SimRequest) -> None: ...

    def shape(self, target: int, request: SimRequest, decoding: int) -> TreeShape | None:
        return None

    def report(self, done: StepDone, now_s: float) -> None: ...

    def joined(self, target: int) -> bool:
        return False


@dataclass(slots=True)
class Tally:
    """What came out."""

    tokens: list[tuple[float, int]] = field(default_factory=list)
    tpot_ms: list[float] = field(default_factory=list)
    ttft_ms: list[float] = field(default_factory=list)
    drafted_rounds: int = 0
    drafted_tokens: int = 0
    requests: int = 0

    def rate(self, start_s: float, stop_s: float) -> float:
        """Tokens a second."""
        return sum(n for at, n in self.tokens if start_s <= at < stop_s) / (stop_s - start_s)


class SimTarget:
    """The decode loop of target_service: one step at a time, trees awaited up to a deadline."""

    def __init__(self, number: int, sim: Simulation) -> None:
        self.number = number
        self.sim = sim
        self.requests: dict[int, SimRequest] = {}
        self.is_stepping = False
        self.waiting_since_s: float | None = None
        self.window: list[int] = []

    def submit(self, request: SimRequest) -> None:
        self.requests[request.number] = request
        self.look()

    def look(self) -> None:
        if self.is_stepping:
            return
        now_s, router = self.sim.events.now_s, self.sim.router
        decoding = sum(r.is_decoding for r in self.requests.values())
        prompts, plain, ready, late, due_s = [], [], [], [], []
        for r in self.requests.values():
            if not r.is_decoding:
                prompts.append(r)
            elif r.tree_is_here:
                ready.append(r)
            elif r.is_asking and now_s < r.deadline_s:
                due_s.append(r.deadline_s)
            elif r.is_asking and router.shape(self.number, r, decoding) is not None:
                late.append(r)
            else:
                plain.append(r)
        others = late or ((plain or prompts) and not router.joined(self.number))
        if due_s and not others:
            if self.waiting_since_s is None:
                self.waiting_since_s = now_s
                self.sim.events.at(min(due_s), self.look)
            return
        if ready or late or plain or prompts:
            self._step(prompts, ready + late + plain, decoding)

    def _step(self, prompts: list[SimRequest], turns: list[SimRequest], decoding: int) -> None:
        sim, world = self.sim, self.sim.world
        now_s = sim.events.now_s
        waited_ms = 0.0 if self.waiting_since_s is None else (now_s - self.waiting_since_s) * 1e3
        self.waiting_since_s = None
        left, chunks = world.chunk_tokens, []
        for request in prompts:
            take = min(left, request.prompt_len - request.committed)
            if take:
                chunks.append((request, take))
            left -= take
        prefill = sum(take for _, take in chunks)
        rows = prefill + sum(r.shape.num_draft_tokens if r.tree_is_here and r.shape else 1 for r in turns)
        context = sum(r.context for r in turns)
        ms = world.steps.at_one(rows)
        ms += world.context_ms * context / 1e5 + world.request_ms * (len(turns) + len(chunks))
        self.is_stepping = True

        def done() -> None:
            self.is_stepping = False
            self._commit(chunks, turns, StepFacts(rows, prefill, ms, waited_ms, decoding, context))

        sim.events.at(now_s + ms / 1e3, done)

    def _commit(self, chunks: list[tuple[SimRequest, int]], turns: list[SimRequest], facts: StepFacts) -> None:
        sim = self.sim
        now_s = sim.events.now_s
        rounds = []
        for r in turns:
            accepted = 0
            if r.tree_is_here:
                assert r.shape is not None
                accepted = sim.accept(r, r.shape)
                rounds.append((r.number, r.shape, accepted, False))
                r.drafted_rounds += 1
                r.drafted_tokens += accepted + 1
                self.window = [*self.window[-255:], accepted]
            elif r.is_asking and r.shape is not None:
                rounds.append((r.number, r.shape, 0, True))
            r.tree_is_here = False
            r.rounds += 1
            self._emit(r, accepted + 1, now_s)
        for r, take in chunks:
            r.committed += take
            if r.committed == r.prompt_len:
                self._emit(r, 1, now_s)
        done = StepDone(
            self.number,
            facts.rows,
            facts.prefill,
            len(turns),
            sum(not late for *_, late in rounds),
            facts.ms,
            facts.waited_ms,
            sum(r.is_decoding for r in self.requests.values()),
            facts.context,
            rounds,
        )
        sim.router.report(done, now_s)
        self._ask(now_s)
        self.look()

    def _emit(self, r: SimRequest, tokens: int, now_s: float) -> None:
        tokens = min(tokens, r.output_len - r.emitted)
        if r.emitted == 0:
            r.first_s = now_s
        r.emitted += tokens
        self.sim.tally.tokens.append((now_s, tokens))
        if r.emitted >= r.output_len:
            del self.requests[r.number]
            self.sim.finish(self.number, r)

    def _ask(self, now_s: float) -> None:
        sim = self.sim
        decoding = sum(r.is_decoding for r in self.requests.values())
        expected = np.mean(self.window) if len(self.window) >= 16 else 1.0
        deadline_ms = max(float(expected), 0.5) * sim.world.steps.at_one(max(decoding, 1))
        asks: dict[int, list[tuple[TreeShape, SimRequest, Callable[[], None]]]] = {}
        for r in self.requests.values():
            if not r.is_decoding or r.is_asking or r.tree_is_here or r.emitted + 1 >= r.output_len:
                continue
            shape = sim.router.shape(self.number, r, decoding)
            if shape is None:
                continue
            r.shape, r.is_asking, r.deadline_s = shape, True, now_s + deadline_ms / 1e3
            asks.setdefault(r.number % len(sim.drafts), []).append((shape, r, self._answer(r)))
        half_s = sim.world.rpc_ms / 2e3
        for index, batch in asks.items():
            sim.events.at(now_s + half_s, functools.partial(sim.drafts[index].ask, batch))

    def _answer(self, r: SimRequest) -> Callable[[], None]:
        emitted = r.emitted

        def arrive() -> None:
            r.is_asking = False
            r.tree_is_here = r.number in self.requests and r.emitted == emitted
            self.look()

        half_s = self.sim.world.rpc_ms / 2e3
        return lambda: self.sim.events.at(self.sim.events.now_s + half_s, arrive)


@dataclass(frozen=True, slots=True)
class StepFacts:
    rows: int
    prefill: int
    ms: float
    waited_ms: float
    decoding: int
    context: int


class Simulation:
    """One run. Deterministic by its seed: lengths and skills are drawn by the request's number."""

    def __init__(
        self, world: World, load: Load, router: Router, *, num_targets: int = 1, num_drafts: int = 1, seed: int = 0
    ) -> None:
        self.world = world
        self.load = load
        self.router = router
        self.events = Events()
        self.tally = Tally()
        self.targets = [SimTarget(i, self) for i in range(num_targets)]
        self.drafts = [SimDraft(world, self.events) for _ in range(num_drafts)]
        self._rng = np.random.default_rng(seed)
        self._seed = seed
        self._numbers = itertools.count()
        self._odds: dict[TreeShape, tuple[float, int]] = {}
        self._in_flight = 0
        self._wanted = 0.0

    def run(self) -> Tally:
        start_s = 0.0
        for seconds, amount in self.load.phases:
            self._wanted = amount
            if self.load.is_open:
                self._arrive(start_s + seconds)
            while not self.load.is_open and self._in_flight < amount:
                self._start()
            start_s += seconds
            self.events.run(start_s)
        return self.tally

    def accept(self, request: SimRequest, shape: TreeShape) -> int:
        """Accepted drafts of one round."""
        if shape not in self._odds:
            self._odds[shape] = self.world.odds(shape), min(shape.num_steps, shape.num_draft_tokens - 1)
        odds, depth = self._odds[shape]
        chance = 1.0 / (1.0 + np.exp(-(odds + request.skill)))
        failures = np.nonzero(self._rng.random(depth) >= chance)[0]
        return int(failures[0]) if len(failures) else depth

    def finish(self, target: int, r: SimRequest) -> None:
        now_s = self.events.now_s
        self.router.end(target, r)
        tally = self.tally
        tally.requests += 1
        tally.drafted_rounds += r.drafted_rounds
        tally.drafted_tokens += r.drafted_tokens
        tally.ttft_ms.append((r.first_s - r.arrived_s) * 1e3)
        if r.emitted > 1:
            tally.tpot_ms.append((now_s - r.first_s) * 1e3 / (r.emitted - 1))
        self._in_flight -= 1
        if not self.load.is_open and self._in_flight < self._wanted:
            self._start()

    def _arrive(self, until_s: float) -> None:
        gap_s = float(self._rng.exponential(1.0 / self._wanted))
        if self.events.now_s + gap_s < until_s:

            def arrived() -> None:
                self._start()
                self._arrive(until_s)

            self.events.at(self.events.now_s + gap_s, arrived)

    def _start(self) -> None:
        number = next(self._numbers)
        rng = np.random.default_rng((self._seed, number))
        prompt_len, output_len = self.load.requests.draw(rng)
        request = SimRequest(
            number, prompt_len, output_len, float(rng.normal(0, self.world.skill_std)), self.events.now_s
        )
        self._in_flight += 1
        target = min(self.targets, key=lambda t: len(t.requests))
        self.router.start(target.number, request)
        self.events.at(self.events.now_s + self.world.rpc_ms / 2e3, lambda: target.submit(request))
