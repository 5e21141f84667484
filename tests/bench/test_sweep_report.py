"""What the report of ``paceline bench sweep`` says, and its picture shows."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from bench.sweep_picture import sweep_picture
from bench.sweep_report import Prediction, report, table


def point(load, policy, rate, **more):
    times = {"p50": 20.0, "p99": 30.0}
    return {
        "load": load,
        "is_open": load.endswith("/s"),
        "policy": policy,
        "tokens_per_s": rate,
        "ttft_ms": times,
        "tpot_ms": times,
        "mean_accepted_length": None if policy == "off" else 2.0,
        "is_disturbed": False,
        "repeat": 0,
        **more,
    }


def test_adaptive_is_held_against_the_best_fixed_policy_of_each_load():
    points = [point("1", "off", rate, repeat=repeat) for repeat, rate in enumerate((10, 11, 99))]
    points += [point("1", "2,3,5", 12), point("1", "adaptive", 9), point("1", "adaptive", 90, repeat=1)]
    points += [point("8", "off", 50), point("8", "2,3,5", 40), point("8", "adaptive", 51)]
    document = report([{"points": points}], [Prediction("8", "off", 45.0)])
    assert [(b["load"], b["best_fixed"], b["adaptive_ratio"]) for b in document["best"]] == [
        ("1", "2,3,5", 0.75),
        ("8", "off", 1.02),
    ]
    assert document["prediction"]["largest_error"] == pytest.approx(0.1)
    assert "largest error 10%: off at 8" in table(document)


def test_disturbed_runs_count_only_where_there_is_no_other():
    points = [point("1", "off", 10), point("1", "off", 4, is_disturbed=True, repeat=1)]
    points += [point("1", "2,3,5", 7, is_disturbed=True)]
    document = report([{"points": points}], [])
    assert [entry["tokens_per_s"] for entry in document["summary"]] == [10, 7]
    assert "| 1 | 10.0 | 7.0~ |" in table(document)


def test_open_and_closed_loads_have_a_row_of_panels_each():
    points = [point(load, "off", 10.0) for load in ("1", "2", "0.5/s", "1/s", "1-8-1")]
    picture = ElementTree.fromstring(sweep_picture(report([{"points": points}], []), "title"))
    assert len(picture.findall(".//{*}polyline")) == 4
