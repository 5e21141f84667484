"""The load generator against a scripted router, and what it counts."""

from __future__ import annotations

import json
import os
import signal
import threading
from multiprocessing import active_children

import pytest

from bench.__main__ import main
from bench.load_generator import LoadGenerator
from bench.outcome import Arrival, Outcome, steady_part
from bench.report import markdown_table
from bench.workload import PLAIN, Variant, Workload
from client.request import Sampling
from paceline.errors import PacelineError
from tests.support.scripted_router import answer_hello
from tests.support.waiting import WAIT_S


def workload(router, num_prompts=3):
    prompts = tuple(f"prompt {i}" for i in range(num_prompts))
    return Workload(router.address, prompts, tuple(Sampling(seed=10 + i) for i in range(num_prompts)))


def run(generator, num_requests, *, concurrency):
    progress = []
    measured = generator.run(
        Variant(PLAIN), num_requests, concurrency=concurrency, repeat=0, on_progress=progress.append
    )
    assert progress[-1] == num_requests
    return measured


def test_two_processes_keep_as_many_in_flight_together_as_asked(router):
    lock, running, most = threading.Lock(), 0, 0
    five = threading.Barrier(5, timeout=WAIT_S)

    def count(request, context):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        if len(router.requests) <= 5:
            five.wait()
        with lock:
            running -= 1
        yield from answer_hello(request, context)

    router.script = count
    with LoadGenerator(workload(router), 2) as generator:
        measured = run(generator, 11, concurrency=5)
    assert (len(router.requests), most) == (11, 5)
    assert measured.errors == [] and measured.output_tokens == 11 * 4


def test_prompts_come_again_in_turn_each_with_its_own_seed(router):
    with LoadGenerator(workload(router), 1) as generator:
        run(generator, 7, concurrency=1)
    sent = [(request.chat.messages[0].content, request.sampling_params.seed) for request in router.requests]
    assert sent == [(f"prompt {i % 3}", 10 + i % 3) for i in range(7)]


def test_a_run_that_counts_on_has_the_prompts_that_come_next(router):
    with LoadGenerator(workload(router, num_prompts=5), 1, counts_on=True) as generator:
        first = run(generator, 2, concurrency=1)
        second = run(generator, 3, concurrency=1)
    assert [len(first.outcomes), len(second.outcomes)] == [2, 3]
    assert [request.chat.messages[0].content for request in router.requests] == [f"prompt {i}" for i in range(5)]


def test_the_same_processes_serve_run_after_run(router):
    with LoadGenerator(workload(router), 2) as generator:
        assert run(generator, 4, concurrency=2).output_tokens == 16
        assert run(generator, 1, concurrency=1).output_tokens == 4
        assert run(generator, 6, concurrency=3).output_tokens == 24
    assert len(router.requests) == 11


def test_a_client_process_that_dies_ends_the_measurement_with_its_exit_code(router):
    stop = threading.Event()

    def hang(request, context):
        (victim,) = active_children()
        os.kill(victim.pid, signal.SIGKILL)
        stop.wait(WAIT_S)
        yield from ()

    router.script = hang
    with LoadGenerator(workload(router), 1) as generator, pytest.raises(PacelineError, match="exit code -9"):
        run(generator, 2, concurrency=1)
    stop.set()
    assert active_children() == []


def outcome(*arrivals):
    return Outcome(None, arrivals=tuple(Arrival(at_s, count) for at_s, count in arrivals))


def test_the_steady_part_counts_tokens_while_all_are_in_flight():
    outcomes = (outcome((1.0, 1), (3.0, 4)), outcome((2.0, 1), (5.0, 4)), outcome((3.5, 1), (9.0, 4)))
    steady = steady_part(outcomes, 2, exhausted_s=5.0)
    assert (steady.seconds, steady.output_tokens) == (3.0, 9)  # (2, 5]: three messages
    assert steady.tokens_per_s == 3.0


def test_no_steady_part_where_no_request_was_replaced():
    outcomes = (outcome((1.0, 1)), outcome((2.0, 1)))
    assert steady_part(outcomes, 2, exhausted_s=3.0) is None
    assert steady_part((*outcomes, outcome((2.5, 1))), 2, exhausted_s=1.5) is None


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"prompt {i}"}) for i in range(3)) + "\n")
    return str(path)


def test_all_concurrencies_and_shapes_run_and_are_summed_up(router, prompts, tmp_path, capsys):
    out = tmp_path / "out.json"
    flags = ["--concurrency", "1,2", "--speculative-shapes", "3,1,4;5,4,16", "--repeat", "2", "--prompts", prompts]
    assert main(["--router", router.address, "--json", str(out), *flags]) == 0
    document = json.loads(out.read_text())
    parts = [(run["concurrency"], run["repeat"], run["mode"], run["shape"]) for run in document["runs"]]
    variants = [("plain", None), ("speculative", [3, 1, 4]), ("speculative", [5, 4, 16])]
    assert parts == [(c, repeat, *variant) for c in (1, 2) for repeat in (0, 1) for variant in variants]
    assert [run["requests"] for run in document["runs"]] == [3] * 6 + [8] * 6
    assert document["identical_outputs"] is True
    assert document["speedup"] is None  # there are four
    assert all(entry["speedup"] > 0 for entry in document["summary"] if entry["mode"] == "speculative")
    shown = capsys.readouterr().out
    assert "| concurrency | 1 | 2 |\n|---|---|---|\n| plain | " in shown
    assert "| (5,4,16) | " in shown


def test_the_markdown_table_has_a_row_a_variant_and_a_column_a_concurrency():
    def entry(mode, concurrency, rate, shape=None, length=None):
        return {
            "mode": mode,
            "concurrency": concurrency,
            "tokens_per_s": rate,
            "shape": shape,
            "mean_accepted_length": length,
        }

    entries = [entry("plain", 1, 200.4), entry("speculative", 1, 350.0, [3, 1, 4], 1.876), entry("plain", 8, 1500.0)]
    assert markdown_table(entries).splitlines() == [
        "| concurrency | 1 | 8 |",
        "|---|---|---|",
        "| plain | 200 | 1500 |",
        "| (3,1,4) | 350 (1.88) | - |",
    ]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--concurrency", "1,none"], "--concurrency is 1,none"),
        (["--speculative-shapes", "3,1"], "'3,1'; it takes steps,topk,nodes"),
        (["--speculative-shapes", "3,1,9"], "num_draft_tokens is 9"),
        (["--min-requests", "0"], "--min-requests is 0"),
        (["--client-processes", "-1"], "--client-processes is -1"),
    ],
)
def test_a_flag_that_cannot_be_is_named(flags, words, capsys):
    assert main(flags) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "counts"), [([], [3, 8]), (["--min-requests", "2"], [2, 8]), (["--min-requests", "10"], [10, 10])]
)
def test_a_run_has_all_prompts_or_as_many_requests_as_asked(router, prompts, tmp_path, flags, counts):
    out = tmp_path / "out.json"
    fixed = ["--compare", "plain", "--concurrency", "1,2", "--prompts", prompts, "--json", str(out)]
    assert main(["--router", router.address, *fixed, *flags]) == 0
    document = json.loads(out.read_text())
    assert [run["requests"] for run in document["runs"]] == counts
    assert document["identical_outputs"] is True
