"""The figures of a measurement, from completions made by hand."""

from __future__ import annotations

import pytest

from bench.outcome import Outcome, Run
from bench.report import first_difference, report, table
from client.completion import Completion
from paceline.stats import SpeculationStats
from paceline.types import FinishReason


def completion(tokens, *, first_s=0.1, last_s=0.3, stats=None):
    return Completion("r", "", (1,), tuple(tokens), FinishReason.LENGTH, stats or SpeculationStats(), first_s, last_s)


def run(mode, *completions, seconds=2.0, repeat=0):
    return Run(mode, repeat, 1, seconds, tuple(Outcome(one) for one in completions))


def test_accepted_length_is_over_rounds_not_over_requests():
    long = SpeculationStats(9, 9, 18, 90, (9, 6, 3))
    short = SpeculationStats(1, 2, 0, 10, (0,), 1)
    figures = report([run("speculative", completion([1], stats=long), completion([1], stats=short))])["runs"][0]
    assert figures["rounds"] == 10
    assert figures["mean_accepted_length"] == 2.8
    assert figures["accepted_by_depth"] == [0.9, 0.6, 0.3]
    assert figures["late_rounds"] == 1


def test_plain_decoding_has_no_accepted_length():
    figures = report([run("plain", completion([1, 2]))])["runs"][0]
    assert (figures["rounds"], figures["mean_accepted_length"], figures["accepted_by_depth"]) == (0, None, [])


def test_throughput_counts_all_tokens_over_the_whole_time():
    figures = report([run("plain", completion([1, 2, 3]), completion([4]), seconds=2.0)])["runs"][0]
    assert (figures["output_tokens"], figures["tokens_per_s"], figures["requests"]) == (4, 2.0, 2)


def test_times_a_token_leave_out_the_first_token_and_requests_with_no_second():
    figures = report([run("plain", completion([1, 2, 3], first_s=0.1, last_s=0.5), completion([4]))])["runs"][0]
    assert figures["tpot_ms"]["p50"] == pytest.approx(200.0)
    assert figures["ttft_ms"] == {"p50": pytest.approx(100.0), "p99": pytest.approx(100.0)}


def test_speedup_is_the_median_over_the_repeats():
    runs = []
    for repeat, (plain_s, fast_s) in enumerate([(2.0, 1.0), (2.0, 0.5), (3.0, 1.0)]):
        runs.append(run("plain", completion([1]), seconds=plain_s, repeat=repeat))
        runs.append(run("speculative", completion([1]), seconds=fast_s, repeat=repeat))
    assert report(runs)["speedup"] == pytest.approx(3.0)


def test_one_mode_alone_has_nothing_to_compare():
    document = report([run("plain", completion([1]))])
    assert (document["speedup"], document["identical_outputs"], document["first_difference"]) == (None, None, None)


def test_equal_tokens_are_identical_outputs():
    document = report([run("plain", completion([1, 2])), run("speculative", completion([1, 2]))])
    assert (document["identical_outputs"], document["first_difference"]) == (True, None)


@pytest.mark.parametrize(
    ("ours", "theirs", "position", "tokens"),
    [([1, 2, 3], [1, 5, 3], 1, [2, 5]), ([1, 2], [1, 2, 3], 2, [None, 3]), ([1], [], 0, [1, None])],
)
def test_the_first_difference_names_prompt_position_and_tokens(ours, theirs, position, tokens):
    plain = run("plain", completion([7]), completion(ours))
    fast = run("speculative", completion([7]), completion(theirs))
    expected = {"prompt": 1, "position": position, "runs": ["plain-0", "speculative-0"], "tokens": tokens}
    assert first_difference([plain, fast]) == expected


def test_a_failed_request_is_counted_and_is_a_difference():
    failed = Run("speculative", 0, 1, 1.0, (Outcome(None, "UnavailableError: gone"),))
    document = report([run("plain", completion([1])), failed])
    assert document["runs"][1]["errors"] == 1
    assert document["identical_outputs"] is False
    assert "identical outputs: no" in table(document)
