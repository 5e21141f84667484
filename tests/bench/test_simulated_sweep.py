"""What a simulator takes from a measured sweep, and what it makes of it."""

from __future__ import annotations

import json

import pytest

from bench.__main__ import main
from bench.simulate import SimulateConfig, simulate
from bench.simulated_asker import FLUSH_ROWS
from bench.simulated_fit import fit_parts, rising
from bench.simulated_pace import paces
from bench.simulated_sweep import predict
from bench.simulated_truth import calibrated_world, served_world, skills_of
from paceline.errors import ConfigError
from paceline.types import TreeShape

TREE = TreeShape(2, 3, 5)


def step(rows, ms, *, prefill=0, drafted=0, wait_ms=0.0):
    requests = drafted or rows - prefill
    return [rows, prefill, requests, drafted, 100 * requests, ms, wait_ms]


def point(policy, steps, *, is_disturbed=False, round_ms=None, repeat=0):
    return {
        "load": "1",
        "is_open": False,
        "phases": [[4.0, 1.0]],
        "ramp_s": 0.5,
        "policy": policy,
        "repeat": repeat,
        "first_number": 0,
        "tokens_per_s": 40.0,
        "rounds": 100,
        "speculative_rounds": 0 if policy == "off" else 100,
        "mean_accepted_length": None,
        "round_ms": round_ms,
        "ttft_ms": {"p50": 113.0, "p99": 120.0},
        "tpot_ms": {"p50": 22.0, "p99": 24.0},
        "is_disturbed": is_disturbed,
        "steps": steps,
    }


@pytest.fixture
def sweep():
    """Plain steps of 20 ms, 2 ms apart; trees after 9 ms, and 1 ms more than between plain steps."""
    prompts = [step(rows, 10.0 + 2.0 * rows, prefill=rows) for rows in (40, 50, 60, 80)] * 3
    return {
        "settings": {"targets": 1, "drafts": 1, "max_tokens": 40, "seed": 0, "warm_up_seconds": 2.0},
        "calibration": {
            "step_ms": [[1, 10.0], [4, 12.0], [8, 15.0]],
            "propose_ms": [{"shape": [2, 3, 5], "by_sessions": [[1, 4.5], [4, 9.0]]}],
        },
        "requests": {
            "prompt_tokens": [50, None],
            "output_tokens": [40, 40],
            "drafts": {"off": [[0, 0], [0, 0]], "2,3,5": [[50, 75], [50, 25]], "adaptive": [[9, 9], [9, 9]]},
        },
        "points": [
            point("off", [step(1, 20.0)] * 30 + prompts, round_ms=22.0),
            point("off", [step(1, 90.0)] * 9, is_disturbed=True, round_ms=99.0, repeat=1),
            point("2,3,5", [step(5, 30.0, drafted=1, wait_ms=9.0)] * 5, round_ms=42.0),
            point("adaptive", [step(5, 30.0, drafted=1, wait_ms=9.0)] * 5, round_ms=42.0),
        ],
    }


def test_times_are_those_of_the_undisturbed_points(sweep):
    world = served_world(sweep)
    assert world.device_ms(1) == pytest.approx(20.0, rel=0.03)
    assert world.device_ms(5) + world.host_ms(1) == pytest.approx(30.0, rel=0.03)
    assert world.device_ms(60, prompt_tokens=60) == pytest.approx(10.0 + 2.0 * 60, rel=0.1)
    assert world.loop_ms == pytest.approx(2.0)
    assert world.turnaround_ms({TREE: 1}) == pytest.approx(9.0 + 1.0, rel=0.005)
    assert world.accepted[TREE] == 2.0


def test_what_was_not_seen_is_the_warm_ups_scaled_as_the_rest(sweep):
    ways = [step(5, 30.0, drafted=1, wait_ms=2.0 * 4.5), step(10, 31.0, drafted=2, wait_ms=2.0 * 6.0)]
    sweep["points"][2]["steps"] = ways * 100
    proposals = served_world(sweep).proposals.of(TREE)
    assert proposals.at_one(4) == pytest.approx(2.0 * 9.0, rel=0.1)


def test_what_late_trees_were_waited_for_past_their_deadline_went_into_rows_that_were_sent(sweep):
    plain = [step(2, 20.0)] * 30
    in_time = [step(2, 20.0, wait_ms=2 * 20.0)] * 5
    too_long = [step(2, 20.0, wait_ms=2 * 20.0 + 2 * FLUSH_ROWS / 2)] * 5  # a millisecond for each row
    for late, send_ms in ((in_time, 0.0), (too_long, 1.0)):
        sweep["points"][0]["steps"] = plain
        sweep["points"][2]["steps"] = late + [step(5, 30.0, drafted=1, wait_ms=9.0)] * 5
        assert served_world(sweep).send_ms == pytest.approx(send_ms, abs=0.1)


def test_points_that_saw_no_first_token_do_not_say_how_long_it_takes(sweep):
    assert served_world(sweep).arrival_ms > 0.0
    for its in sweep["points"]:
        its["ttft_ms"] = {"p50": None, "p99": None}
    assert served_world(sweep).arrival_ms == 0.0


def test_the_adaptive_policy_starts_from_the_warm_up(sweep):
    assert calibrated_world(sweep).steps.at_one(1) == 10.0


def test_services_that_measured_nothing_are_refused(sweep):
    sweep["calibration"]["propose_ms"] = []
    with pytest.raises(ConfigError, match="did not say"):
        list(predict(sweep))


def test_a_prompt_whose_drafts_are_accepted_more_often_has_more_skill(sweep):
    likely, unlikely = skills_of(sweep, served_world(sweep))
    assert likely > 0.2 > -0.2 > unlikely


def test_a_point_that_other_work_slowed_down_is_predicted_slower(sweep):
    world = served_world(sweep)
    before, disturbed, after, _ = paces(sweep["calibration"], sweep["points"], world)
    assert before == pytest.approx(1.0, rel=0.35)
    assert disturbed > 1.15 * max(before, after)


def test_values_that_never_fall_are_the_means_of_those_that_did():
    assert rising([1.0, 3.0, 2.0, 4.0], [1, 1, 3, 1]) == [1.0, 2.25, 2.25, 4.0]


def test_parts_are_found_and_none_is_negative():
    features = [(1.0, size, size % 3) for size in map(float, range(12))]
    parts = fit_parts(features, [20.0 + 30.0 * size - 0.1 * rest for _, size, rest in features], prior=[(0.0, 1e3)] * 3)
    assert parts == pytest.approx([20.0, 30.0, 0.0], abs=0.3)


def test_larger_fleets_are_simulated_from_a_sweep(sweep, tmp_path):
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps({"sweeps": [sweep]}))
    config = SimulateConfig(sweep=str(path), targets=4, concurrency=("4",), policies="off", prompt_tokens=8.0)
    (run,) = simulate(config)["runs"]
    assert run["tokens_per_s"] == pytest.approx(4 * 1e3 / 22.0, rel=0.05)


def test_a_file_of_anything_else_is_refused_by_all_who_read_sweeps(sweep, tmp_path, capsys):
    path = tmp_path / "sweep.json"
    no_step = {**sweep, "points": [point("off", [[1, 0]])]}
    no_calibration = {name: value for name, value in sweep.items() if name != "calibration"}
    for sweeps in (3, [], [3], [{"points": [{}]}], [{**sweep, "points": []}], [no_step], [sweep, no_calibration]):
        path.write_text(json.dumps({"sweeps": sweeps}))
        for words in (["sweep", "--measured"], ["simulate", "--policies", "off", "--sweep"]):
            assert main([*words, str(path)]) == 2, sweeps
            assert f"{path} is not what --json of paceline bench sweep wrote" in capsys.readouterr().err


def test_a_request_alone_is_predicted_as_it_was_measured(sweep):
    sweep["points"] = [point for point in sweep["points"] if not point["is_disturbed"]]
    rates = {prediction.policy: prediction.tokens_per_s for prediction in predict(sweep)}
    prompt_ms = 10.0 + 2.0 * 50 + 2.0 + 1.0  # and the way to the target
    assert rates["off"] == pytest.approx(40 / (prompt_ms + 39 * 22.0) * 1e3, rel=0.06)
    assert rates["2,3,5"] == pytest.approx(40 / (prompt_ms + 39 / 2.0 * 42.0) * 1e3, rel=0.15)
    assert rates["adaptive"] > rates["off"]
