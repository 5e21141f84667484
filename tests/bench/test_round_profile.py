"""Where a round's time goes: the parts, the rest, and the picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from bench.outcome import Outcome, Run
from bench.round_picture import round_picture
from bench.round_profile import PARTS, RPC, profile_of, profile_table
from bench.round_sampler import SampledRound
from client.completion import Completion
from paceline.stats import SpeculationStats
from paceline.types import FinishReason, TreeShape

TARGET_MS = {"wait": 2.3, "plan": 0.1, "host": 0.2, "forward": 4.0, "sample": 0.3, "commit": 0.1, "extend": 0.1}
DRAFT_MS = {"plan": 0.1, "propose": 1.5, "answer": 0.1, "commit": 0.3}


def run(mode="speculative", *, rounds=10, seconds=0.07):
    stats = SpeculationStats(speculative_rounds=rounds, rounds=rounds)
    completion = Completion("r", "", (1,), (5, 6), FinishReason.LENGTH, stats, 1.0, 1.0 + seconds)
    shape = TreeShape(3, 1, 4) if mode == "speculative" else None
    return Run(mode, 0, 1, 2.0, (Outcome(completion),), shape)


def speculative_rounds(*, wait_ms=2.3):
    return [SampledRound("target", TARGET_MS | {"wait": wait_ms}, 4), SampledRound("draft", DRAFT_MS, 4)]


def test_of_a_wait_for_trees_what_neither_the_asks_nor_the_draft_took_is_rpc_and_waiting():
    profile = profile_of(
        [run(seconds=0.5)], [*speculative_rounds(), *speculative_rounds(), *speculative_rounds(wait_ms=90)]
    )
    assert profile.interval_ms == pytest.approx(7.0), "the usual round's, whatever clients wait for besides"
    assert profile.parts_ms["verify"] == 4.0
    assert profile.parts_ms["draft: propose"] == 1.5
    assert profile.parts_ms[RPC] == pytest.approx(7.0 - 4.8 - 1.7)
    assert profile.overhead == pytest.approx(1 - 5.8 / 7.0)
    assert (profile.label, profile.num_samples) == ("(3,1,4)", 3)


def test_of_a_round_in_halves_what_two_verifies_leave_is_waiting():
    halves = [SampledRound("target", TARGET_MS, 4, requests=3), SampledRound("draft", DRAFT_MS, 4, requests=3)]
    profile = profile_of([replace(run(seconds=0.1), concurrency=6)], halves)
    assert profile.label == "(3,1,4) in halves"
    assert (profile.parts_ms["verify"], profile.parts_ms["sample"]) == (8.0, 0.6)
    assert profile.parts_ms[RPC] == pytest.approx(10.0 - 8.6)
    assert profile.overhead == pytest.approx(0.14)


def test_steps_of_prompts_alone_do_not_count_as_rounds():
    slow = SampledRound("target", {"forward": 900.0}, 1)  # a prompt's first token in a speculative run
    empty = SampledRound("draft", {"propose": 900.0}, 0)
    assert profile_of([run()], [*speculative_rounds(), slow, empty]).parts_ms["verify"] == 4.0


def test_plain_decoding_has_no_draft_in_its_rounds():
    rounds = [SampledRound("target", TARGET_MS, 1), SampledRound("draft", DRAFT_MS, 4)]
    profile = profile_of([run("plain")], rounds)
    assert profile.parts_ms["draft: propose"] == 0
    assert profile.parts_ms[RPC] == pytest.approx(2.2)


def test_plain_rounds_are_averaged_over_the_repeats():
    plain = [SampledRound("target", TARGET_MS, 1)]
    assert profile_of([run("plain"), run("plain", seconds=0.09)], plain).interval_ms == pytest.approx(8.0)


def test_too_little_to_go_by_gives_no_profile():
    assert profile_of([run()], speculative_rounds()[:1]) is None
    assert profile_of([run(rounds=0)], speculative_rounds()) is None


def test_the_table_has_all_parts_and_the_overhead():
    header, _, line = profile_table([profile_of([run()], speculative_rounds())]).splitlines()
    assert all(part in header for part in PARTS)
    assert line.startswith("| (3,1,4) | 1 | 7.00 | 0.10 | 1.50 |") and line.endswith("| 17% |")


def test_the_picture_is_svg_with_bars_in_proportion():
    profiles = [profile_of([run()], speculative_rounds()), profile_of([run()], speculative_rounds(wait_ms=9.3))]
    root = ET.fromstring(round_picture(profiles, "A < B"))
    space = {"svg": "http://www.w3.org/2000/svg"}
    widths = {}
    for rect in root.findall("svg:rect", space):
        if (title := rect.find("svg:title", space)) is not None:
            widths.setdefault(title.text.rpartition(":")[0], []).append(float(rect.get("width")))
    assert widths["verify"][0] == pytest.approx(widths["verify"][1], abs=0.2)
    assert sum(width[1] for width in widths.values()) == pytest.approx(2 * sum(w[0] for w in widths.values()), abs=1)
    assert "A < B" in [text.text for text in root.findall("svg:text", space)]
