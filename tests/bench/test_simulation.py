"""The simulator against arithmetic by hand, and the adaptive policy against every fixed one in it."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.load import Load
from bench.simulate import SimulateConfig, main, simulate, table
from bench.simulated_adaptive import SimAdaptive
from bench.simulated_request import SimRequest
from bench.simulated_requests import RandomRequests
from bench.simulated_router import Fixed, SimRound, SimRouter
from bench.simulated_schedule import Moment, schedule
from bench.simulated_target import GAP_MS
from bench.simulated_world import World, load_world
from bench.simulation import Simulation
from paceline.errors import ConfigError
from paceline.step_table import StepTable
from paceline.types import TreeShape
from router.cost_tables import ProposeTable
from router.plan_rows import PlannerSettings
from router.step_report import StepReport

WORLDS = Path(__file__).parents[2] / "bench" / "worlds"
CHAIN = TreeShape(3, 1, 4)
FOLLOW_MS = 0.45  # the draft's CPU time for a row of the default pair on a 2-core machine, AVX2
ALL_OUTPUT = RandomRequests(prompt_tokens=8, output_tokens=1e6)


def slow(*values: object) -> Any:
    """A case among the longer checks, beside others like it."""
    return pytest.param(*values, marks=pytest.mark.slow)


def world(name: str) -> World:
    return load_world(WORLDS / f"{name}.json")


def rate(of: World, router: SimRouter, load: Load, *, after_s: float = 1.0, **fleet: int) -> float:
    stop_s = sum(seconds for seconds, _ in load.phases)
    return Simulation(of, router, **fleet).run(load).rate(after_s, stop_s)


def steady(in_flight: int, seconds: float) -> Load:
    return Load(((seconds, in_flight),))


def best_fixed(of: World, load: Load, after_s: float) -> float:
    shapes = [None, *of.proposals.growths]
    return max(rate(of, Fixed(shape), load, after_s=after_s) for shape in shapes)


def over_best_fixed(
    of: World,
    make: Callable[[], SimRouter],
    load: Load,
    after_s: float,
    *,
    shapes: Sequence[TreeShape | None] | None = None,
) -> float:
    """What make's router gives, over the best fixed shape. Means of two runs with other requests: which of two trees
    that are about as good is better differs by some percent from one to the other."""
    policies = [None, *of.proposals.growths] if shapes is None else shapes

    def mean(router: Callable[[], SimRouter]) -> float:
        return statistics.fmean(rate(of, router(), load, after_s=after_s, seed=seed) for seed in (0, 1))

    return mean(make) / max(mean(functools.partial(Fixed, shape)) for shape in policies)


def test_plain_decoding_takes_a_step_a_token() -> None:
    of = dataclasses.replace(world("h200_8b_slow_host"), requests=ALL_OUTPUT)
    step_ms = of.device_ms(16, requests=16)
    assert rate(of, Fixed(None), Load(((3.0, 16),))) == pytest.approx(16 / step_ms * 1e3, rel=0.01)


def test_a_chain_that_was_not_measured_is_accepted_as_measured_chains_are() -> None:
    of = world("h200_8b_slow_host")
    for rest in ({}, {TreeShape(2, 3, 5): 2.9, TreeShape(5, 4, 16): 4.0}):
        of = dataclasses.replace(of, accepted={TreeShape(1, 1, 2): 1.6, **rest})
        assert of.odds(TreeShape(3, 1, 4)) == pytest.approx(np.log(0.6 / 0.4))


def test_a_round_takes_verify_draft_and_messages() -> None:
    of = dataclasses.replace(world("h200_8b_slow_host"), skill_std=0.0, requests=ALL_OUTPUT)
    draft_ms = of.proposals.of(CHAIN).at_one(1) + of.rpc_ms + of.rpc_session_ms
    round_ms = of.steps.at_one(4) + of.request_ms + of.trees_ms + of.tree_ms + draft_ms
    expected = of.accepted[CHAIN] / round_ms * 1e3
    assert rate(of, Fixed(CHAIN), Load(((20.0, 1),))) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("beside", [0.0, 0.1])
def test_two_halves_hide_the_drafts_but_not_what_these_take_from_the_same_gpu(beside: float) -> None:
    """The target tries both ways before it keeps to halves, which costs a little."""
    of = dataclasses.replace(
        world("h200_8b_slow_host"), requests=ALL_OUTPUT, skill_std=0.0, tree_ms=0.0, trees_ms=0.0, rpc_session_ms=0.0
    )
    of = dataclasses.replace(of, beside=beside)
    step_ms = of.steps.at_one(128 * 4 / 2) + GAP_MS + beside * of.proposals.of(CHAIN).at_one(64)
    halves = rate(of, Fixed(CHAIN, joined=True), steady(128, 2.5), after_s=1.5)
    assert halves == pytest.approx(128 * of.accepted[CHAIN] / (2 * step_ms) * 1e3, rel=0.06)
    assert halves > 1.03 * rate(dataclasses.replace(of, overlaps=False), Fixed(CHAIN, joined=True), steady(128, 2.0))


def test_where_halves_pay_the_policy_finds_out_within_eight_seconds_and_holds_still() -> None:
    """Drafts on a GPU of their own: no rounds but those in halves are faster than plain decoding."""
    of = dataclasses.replace(world("h200_8b_slow_host"), beside=0.0, beside_rows=0.0, slowed=0.0)
    router = SimAdaptive(of)
    joined: list[bool] = []
    report = router.report

    def watched(target: int, step: StepReport, rounds: list[SimRound], now_s: float) -> None:
        report(target, step, rounds, now_s)
        joined.append(router.is_joined(target))

    router.report = watched
    in_halves = rate(of, router, steady(32, 12.0), after_s=8.0)
    assert in_halves > 1.03 * best_fixed(dataclasses.replace(of, overlaps=False), steady(32, 4.0), 2.0)
    assert sum(before != after for before, after in itertools.pairwise(joined)) <= 6


@pytest.mark.parametrize("in_flight", [32, 256])
def test_what_trees_cost_the_hosts_is_found_out_within_two_seconds(in_flight: int) -> None:
    """Neither service says at its warm-up what trees cost the hosts; here they make plain decoding the best."""
    of = dataclasses.replace(world("h200_8b_slow_host"), tree_ms=0.15, rpc_session_ms=0.2)
    load = steady(in_flight, 4.0)
    plain, adaptive = (Simulation(of, router).run(load) for router in (Fixed(None), SimAdaptive(of)))
    assert adaptive.rate(0.0, 2.0) >= 0.6 * plain.rate(0.0, 2.0)
    assert adaptive.rate(2.0, 4.0) >= 0.95 * plain.rate(2.0, 4.0)


def test_trees_that_take_about_as_long_as_they_pay_for_are_used() -> None:
    """Else luck would decide whether a setting runs with trees or without, at twice the speed."""
    of = dataclasses.replace(world("h200_8b_slow_host"), spread=0.35)
    tallies = [Simulation(of, Fixed(TreeShape(5, 4, 16)), seed=seed).run(steady(256, 2.0)) for seed in range(3)]
    assert all(tally.late_rounds < 0.25 * tally.drafted_rounds for tally in tallies)
    rates = [tally.rate(0.5, 2.0) for tally in tallies]
    assert max(rates) < 1.2 * min(rates)


def test_a_prompt_under_way_holds_the_trees_of_its_half_as_a_targets_scheduler_does() -> None:
    ready, prompt = (SimRequest(number, 8, 8, 0.0, np.random.default_rng(), 0.0) for number in range(2))
    ready.emitted, ready.has_tree, ready.shape, prompt.is_running = 1, True, CHAIN, True
    moment = Moment(0.0, joins=True, is_split=True, is_busy=True)
    assert schedule([ready, prompt], moment, lambda request: True).is_empty
    assert schedule([ready, prompt], moment, lambda request: request is ready).turns == [ready]


def test_small_rounds_are_not_split_for_their_steps_would_take_twice_as_long() -> None:
    of = dataclasses.replace(world("h200_8b_slow_host"), requests=ALL_OUTPUT)
    at_once = dataclasses.replace(of, overlaps=False)
    rates = [rate(each, Fixed(CHAIN, joined=True), steady(4, 2.0)) for each in (of, at_once)]
    assert rates[0] == pytest.approx(rates[1], rel=0.02)


def test_two_targets_and_two_drafts_give_twice_as_much() -> None:
    of = world("h200_8b_slow_host")
    one = rate(of, Fixed(CHAIN), steady(8, 4.0))
    two = rate(of, Fixed(CHAIN), steady(16, 4.0), num_targets=2, num_drafts=2)
    assert two == pytest.approx(2 * one, rel=0.06)


def test_one_draft_for_many_targets_makes_them_wait() -> None:
    of, tree = world("h200_8b_slow_host"), Fixed(TreeShape(5, 4, 16))
    shared = rate(of, tree, steady(256, 1.0), num_targets=16, num_drafts=1, after_s=0.4)
    own = rate(of, tree, steady(256, 1.0), num_targets=16, num_drafts=16, after_s=0.4)
    assert shared < 0.98 * own


def test_the_same_seed_gives_the_same_run() -> None:
    of = world("h200_8b_slow_host")
    runs = [rate(of, SimAdaptive(of), steady(8, 2.0)) for _ in range(2)]
    assert runs[0] == runs[1]


def test_open_arrivals_are_served_as_they_come() -> None:
    of = dataclasses.replace(world("h200_8b_slow_host"), requests=RandomRequests(50, 32))
    load = Load(((4.0, 50.0),), is_open=True)
    assert rate(of, Fixed(None), load) == pytest.approx(50 * 32, rel=0.25)


@pytest.mark.parametrize("in_flight", [1, 8, 64, *(slow(load) for load in (2, 32, 256))])
@pytest.mark.parametrize("name", ["h200_8b_slow_host", slow("h200_8b")])
def test_adaptive_is_as_fast_as_the_best_fixed_on_a_gpu(name: str, in_flight: int) -> None:
    of = world(name)
    is_near = in_flight in (8, 32)  # there several trees, or none, are as good as each other within 5 %
    after_s = 4.0 if is_near else 2.0  # a target tries halves meanwhile, some 40 rounds
    load = steady(in_flight, after_s + (4.0 if in_flight < 64 else 2.0))
    assert over_best_fixed(of, functools.partial(SimAdaptive, of), load, after_s) >= 0.97


@pytest.mark.parametrize(("in_flight", "least"), [(8, 0.97), slow(16, 0.95)])
def test_a_growth_that_costs_more_beside_a_step_than_its_warm_up_says_is_left(in_flight: int, least: float) -> None:
    """Draft and target share a GPU: each takes from the other what a warm-up of either alone does not show. With 16
    requests the others are so near each other that several are tried."""
    calibration = world("h200_8b_slow_host")
    factors = {growth: 2.2 if growth.eagle_topk == 8 else 1.3 for growth in calibration.proposals.growths}
    of = with_times(calibration, np.ones(len(calibration.steps.rows)), factors)
    of = dataclasses.replace(of, beside=0.15, beside_rows=0.7, slowed=0.5, spread=0.3)
    load, numbers = steady(in_flight, 7.0), [(3, 1, 4), (5, 4, 16), (5, 4, 8), (4, 2, 8), (2, 3, 5)]
    shapes = [None, *(TreeShape(*shape) for shape in numbers)]
    routers: list[SimAdaptive] = []

    def adaptive() -> SimAdaptive:
        routers.append(SimAdaptive(calibration, PlannerSettings(default=TreeShape(2, 3, 5))))
        return routers[-1]

    assert over_best_fixed(of, adaptive, load, 3.0, shapes=shapes) >= least
    for router in routers:
        num_changes = len([at_s for at_s, _ in router.changes if at_s > 5.0])
        assert num_changes <= 2 * in_flight, "it does not settle"


@pytest.mark.parametrize("in_flight", [1, 8, *(slow(load) for load in (2, 4, 16))])
def test_adaptive_is_as_fast_as_the_best_fixed_on_a_cpu(in_flight: int) -> None:
    of = world("cpu_135m")
    load = steady(in_flight, 60.0 if in_flight > 2 else 80.0)
    assert rate(of, SimAdaptive(of), load) >= 0.97 * best_fixed(of, load, 1.0)


@pytest.mark.parametrize(
    ("name", "phases"),
    [("h200_8b_slow_host", ((4, 4), (1.5, 96), (4, 4))), slow("cpu_135m", ((60, 1), (25, 8), (60, 1)))],
)
def test_from_low_to_high_and_back_adaptive_beats_every_fixed_one(
    name: str, phases: tuple[tuple[float, float], ...]
) -> None:
    of, load = world(name), Load(phases)
    assert rate(of, SimAdaptive(of), load, after_s=0.0) >= 1.03 * best_fixed(of, load, 0.0)


@pytest.mark.parametrize(("steps", "drafts"), [(3.0, 1.0), slow(1.0, 3.0), slow(1.0, 0.4)])
def test_a_wrong_warm_up_is_corrected_by_what_is_seen(steps: float, drafts: float) -> None:
    of = world("h200_8b_slow_host")
    wrong = with_times(of, np.full(len(of.steps.rows), steps), dict.fromkeys(of.proposals.growths, drafts))
    load = steady(16, 4.0)
    assert rate(of, SimAdaptive(wrong), load, after_s=2.0) >= 0.97 * best_fixed(of, load, 2.0)


def with_times(of: World, step_factors: np.ndarray, draft_factors: dict[TreeShape, float]) -> World:
    steps = StepTable(zip(of.steps.rows, of.steps.ms * step_factors, strict=True))
    times = [
        (growth, int(sessions), draft_factors[growth] * ms)
        for growth in of.proposals.growths
        for sessions, ms in zip(of.proposals.of(growth).rows, of.proposals.of(growth).ms, strict=True)
    ]
    return dataclasses.replace(of, steps=steps, proposals=ProposeTable(times))


@pytest.mark.parametrize("in_flight", [1, *(slow(load) for load in (4, 16))])
def test_services_that_measured_each_other_cost_little_from_the_first_request_on(in_flight: int) -> None:
    of, rng = world("cpu_135m"), np.random.default_rng(1)
    longer = np.exp(np.abs(rng.normal(0.0, 0.6, len(of.steps.rows))))
    wrong = with_times(
        of, longer, {growth: float(np.exp(abs(rng.normal(0.0, 0.6)))) for growth in of.proposals.growths}
    )
    load = steady(in_flight, 12.0)
    router = SimAdaptive(wrong, PlannerSettings(default=TreeShape(2, 3, 5)))
    assert rate(of, router, load, after_s=0.0) >= 0.95 * best_fixed(of, load, 0.0)


def test_on_shared_cores_requests_that_decode_plainly_are_not_followed_for_long() -> None:
    of, load = dataclasses.replace(world("cpu_135m"), follow_ms=FOLLOW_MS), steady(16, 12.0)
    assert rate(of, SimAdaptive(of), load, after_s=0.0) >= 0.96 * best_fixed(of, load, 0.0)


@pytest.mark.parametrize("in_flight", [4, *(slow(load) for load in (1, 8))])
def test_a_warm_up_cut_short_by_a_busy_machine_costs_little(in_flight: int) -> None:
    of = dataclasses.replace(world("cpu_135m"), follow_ms=FOLLOW_MS)
    alone = [(growth, 1, 2.0 * float(of.proposals.of(growth).ms[0])) for growth in of.proposals.growths]
    measured = of.proposals.of(of.proposals.growths[0])
    cut = dataclasses.replace(
        of,
        steps=StepTable([(1, 70.0), (2, 76.0)]),
        proposals=ProposeTable([*alone, (of.proposals.growths[0], 4, 2.0 * measured.at_one(4))]),
    )
    load = steady(in_flight, 12.0)
    router = SimAdaptive(cut, PlannerSettings(default=TreeShape(2, 3, 5)))
    assert rate(of, router, load, after_s=0.0) >= 0.94 * best_fixed(of, load, 0.0)


@pytest.mark.parametrize("in_flight", [2, slow(32)])
def test_a_draft_that_is_slower_than_it_measured_is_left_alone(in_flight: int) -> None:
    calibration = world("h200_8b_slow_host")
    of = with_times(
        calibration, np.ones(len(calibration.steps.rows)), dict.fromkeys(calibration.proposals.growths, 12.0)
    )
    load = steady(in_flight, 6.0)
    assert rate(of, SimAdaptive(calibration), load, after_s=2.0) >= 0.97 * rate(of, Fixed(None), load, after_s=2.0)


def test_the_table_has_a_row_a_load_and_a_column_a_policy() -> None:
    config = SimulateConfig(concurrency=("1", "4"), policies="off;3,1,4;adaptive", seconds=1.0, warm_up_seconds=0.2)
    lines = table(simulate(config)).splitlines()
    assert lines[2] == "| load | off | 3,1,4 | adaptive | ratio |"
    assert [line.split("|")[1].strip() for line in lines[4:]] == ["1", "4"]


def test_a_world_that_is_none_is_refused(tmp_path: Path) -> None:
    bad = tmp_path / "world.json"
    bad.write_text('{"name": "half"}')
    with pytest.raises(ConfigError, match="no cost model"):
        load_world(bad)
    with pytest.raises(ConfigError, match="cannot be read"):
        main(["--world", str(tmp_path / "none.json")])


@pytest.mark.parametrize("flags", [{"policies": "3,1"}, {"phases": "8-2"}, {"concurrency": ("0",)}, {"rates": ("x",)}])
def test_a_bad_flag_is_refused(flags: dict) -> None:
    with pytest.raises(ConfigError):
        simulate(SimulateConfig(**flags))
