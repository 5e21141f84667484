"""``paceline bench sweep`` against a scripted router."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import threading
from concurrent import futures
from xml.etree import ElementTree

import grpc
import pytest

from bench.__main__ import main
from bench.load import Load
from bench.load_generator import LoadGenerator
from bench.timed_run import LEAST_TOKENS
from bench.workload import PLAIN, Variant, Workload
from client.request import Sampling
from paceline.v1 import common_pb2, router_pb2, target_pb2, target_pb2_grpc
from tests.support.scripted_router import answer_hello

STEPS = [common_pb2.StepTime(rows=rows, ms=10.0 + rows) for rows in (1, 4, 16)]


CHAIN = common_pb2.TreeShape(num_steps=3, eagle_topk=1, num_draft_tokens=4)


PROPOSALS = [common_pb2.ProposeTime(shape=CHAIN, sessions=1, ms=2.0)]


class Target(target_pb2_grpc.TargetServiceServicer):
    """Each look sees another step."""

    def __init__(self):
        self.step_ms = itertools.count(12.0)

    def GetInfo(self, request, context):
        load = target_pb2.LoadReport(rows=2, verified_requests=2, step_ms=next(self.step_ms))
        return target_pb2.TargetServiceGetInfoResponse(load=load)


@pytest.fixture
def adaptive_router(router):
    """With a target that reports its steps."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    target_pb2_grpc.add_TargetServiceServicer_to_server(Target(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    router.info.speculative_policy = "adaptive"
    del router.info.targets[:], router.info.drafts[:]
    router.info.targets.append(_replica("target", address, step_times=STEPS))
    router.info.drafts.append(_replica("draft", "127.0.0.1:3", propose_times=PROPOSALS))
    yield router
    server.stop(None).wait()


def _replica(service, address, **times):
    info = common_pb2.ServiceInfo(service=service, dtype="float32", **times)
    return router_pb2.ReplicaState(address=address, ready=True, info=info)


@contextlib.contextmanager
def generator_for(router, num_processes=1):
    workload = Workload(router.address, ("one", "two"), (Sampling(max_tokens=8), Sampling(max_tokens=8)))
    with LoadGenerator(workload, num_processes) as generator:
        yield generator


class Endless:
    """Tokens until the request is cut off."""

    def __init__(self):
        self.lock = threading.Lock()
        self.running = 0
        self.seen: list[int] = []  # how many ran, after each start

    def __call__(self, request, context):
        gone = threading.Event()
        context.add_callback(gone.set)
        with self.lock:
            self.running += 1
            self.seen.append(self.running)
        offset = 0
        while not gone.wait(0.01):
            yield router_pb2.GenerateResponse(token_ids=[1] * LEAST_TOKENS, offset=offset)
            offset += LEAST_TOKENS
        with self.lock:
            self.running -= 1


def test_as_many_are_in_flight_as_each_phase_says_and_none_at_the_end(router):
    router.script = endless = Endless()
    with generator_for(router, num_processes=2) as generator:
        run = generator.play(Variant(PLAIN), Load(((0.3, 1), (0.3, 3), (0.3, 1))), first_number=0, seed=0)
    assert endless.seen == [1, 2, 3]
    assert run.errors == [] and run.completions == [] and len(run.outcomes) == 3
    lasted = sorted(outcome.ended_s - outcome.sent_s for outcome in run.outcomes.values())
    assert lasted[0] < lasted[-1]
    assert run.tokens_per_s > 0 and len(run.tpot_ms()) == 3


def test_the_first_of_a_closed_loop_may_be_shorter_and_ended_ones_are_replaced(router):
    with generator_for(router) as generator:
        run = generator.play(Variant(PLAIN), Load(((0.3, 4),)), first_number=6, seed=0)
    limits = sorted(request.sampling_params.max_tokens for request in router.requests)
    assert limits[:3] == [2, 4, 6] and set(limits[3:]) == {8}
    assert list(run.outcomes)[:4] == [6, 7, 8, 9]
    assert len(run.completions) > 4


def test_open_arrivals_come_when_the_seed_says(router):
    load = Load(((0.5, 20.0),), is_open=True)
    with generator_for(router) as generator:
        run = generator.play(Variant(PLAIN), load, first_number=0, seed=3)
    expected = list(load.arrivals(3))
    assert len(run.outcomes) == len(expected)
    for at_s, outcome in zip(expected, run.outcomes.values(), strict=True):
        assert outcome.sent_s - run.began_s >= at_s - 0.01


def test_a_request_that_fails_ends_the_load(router):
    def fail(request, context):
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no such thing")
        yield

    router.script = fail
    with generator_for(router) as generator:
        run = generator.play(Variant(PLAIN), Load(((60.0, 2),)), first_number=0, seed=0)
    assert "no such thing" in run.errors[0]


def sweep(router, tmp_path, *flags):
    out = tmp_path / "out.json"
    short = ["--seconds-per-point", "0.2", "--ramp-seconds", "0", "--warm-up-seconds", "0", "--repeat", "2"]
    code = main(["sweep", "--router", router.address, "--json", str(out), *short, *flags])
    return code, json.loads(out.read_text()) if out.exists() else None


def test_policies_are_interleaved_and_requests_carry_them(adaptive_router, tmp_path, capsys):
    flags = ["--concurrency", "2", "--policies", "off;3,1,4;adaptive", "--num-prompts", "4", "--max-tokens", "8"]
    code, document = sweep(adaptive_router, tmp_path, *flags, "--simulate", "--picture", str(tmp_path / "out.svg"))
    assert code == 0
    points = document["sweeps"][0]["points"]
    assert [point["policy"] for point in points] == ["off", "3,1,4", "adaptive"] * 2
    assert [point["first_number"] for point in points] == [0, 0, 0, 2, 2, 2]
    asked = {(request.speculation.disable, request.speculation.shape.num_steps) for request in adaptive_router.requests}
    assert asked == {(True, 0), (False, 3), (False, 0)}
    assert document["sweeps"][0]["calibration"]["step_ms"] == [[1, 11.0], [4, 14.0], [16, 26.0]]
    steps = [step for point in points for step in point["steps"]]
    assert steps and all(step[:3] == [2, 0, 2] for step in steps)
    assert all(entry["predicted_tokens_per_s"] > 0 for entry in document["summary"])
    assert "adaptive / best" in capsys.readouterr().out
    assert len(ElementTree.parse(tmp_path / "out.svg").findall(".//{*}polyline")) == 6


def test_an_interrupted_sweep_shows_what_it_has(adaptive_router, tmp_path, monkeypatch):
    play, calls = LoadGenerator.play, iter(range(9))

    def interrupted(self, *args, **kwargs):
        if next(calls) == 1:
            raise KeyboardInterrupt
        return play(self, *args, **kwargs)

    monkeypatch.setattr(LoadGenerator, "play", interrupted)
    code, document = sweep(adaptive_router, tmp_path, "--concurrency", "1", "--policies", "off;3,1,4")
    assert code == 0
    assert [point["policy"] for point in document["sweeps"][0]["points"]] == ["off"]


def failing(num_well, of=lambda request: True):
    """A script: of these requests all after the first num_well fail."""
    seen = itertools.count()

    def script(request, context):
        if of(request) and next(seen) >= num_well:
            context.abort(grpc.StatusCode.INTERNAL, "the draft fell over")
        yield from answer_hello(request, context)

    return script


def test_a_failed_request_costs_its_own_point_alone(adaptive_router, tmp_path, capsys):
    adaptive_router.script = failing(1, of=lambda request: not request.speculation.disable)  # the first is the warm-up
    code, document = sweep(adaptive_router, tmp_path, "--concurrency", "1", "--policies", "off;3,1,4")
    out, err = capsys.readouterr()
    assert code == 1
    assert "2 request(s) failed, the first with" in err and "the draft fell over" in err
    assert [(point["policy"], point["repeat"]) for point in document["sweeps"][0]["points"]] == [("off", 0), ("off", 1)]
    assert [(entry["policy"], entry["repeat"]) for entry in document["failed"]] == [("3,1,4", 0), ("3,1,4", 1)]
    assert re.search(r"^\| 1 \| [\d.]+ \| -! \| off \|", out, re.M)
    assert "3,1,4 at 1, run 2: " in out


def test_a_sweep_of_which_nothing_is_left_is_an_error(adaptive_router, tmp_path, capsys):
    adaptive_router.script = failing(1)
    assert sweep(adaptive_router, tmp_path, "--concurrency", "1", "--policies", "off") == (1, None)
    assert "2 request(s) failed, the first with" in capsys.readouterr().err


def test_measured_sweeps_are_shown_together(adaptive_router, tmp_path, capsys):
    for number, concurrency in enumerate(("1", "2")):
        flags = ["--concurrency", concurrency, "--policies", "off", "--num-prompts", "2"]
        sweep(adaptive_router, tmp_path, *flags, "--json", str(tmp_path / f"{number}.json"))
    capsys.readouterr()
    paths = ",".join(str(tmp_path / f"{number}.json") for number in (0, 1))
    assert main(["sweep", "--measured", paths]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:6]] == ["load", "---", "1", "2"]


def test_a_router_that_does_not_decide_adaptively_is_refused(router, capsys):
    assert main(["sweep", "--router", router.address, "--concurrency", "1"]) == 2
    assert "--speculative-policy adaptive" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--concurrency", "1.5"], "whole numbers"),
        (["--concurrency", ""], "no load"),
        (["--policies", "off;off"], "twice"),
        (["--policies", "3,1"], "steps,topk,nodes"),
        (["--policies", "foo"], "--policies holds 'foo'; it takes off, adaptive or steps,topk,nodes"),
        (["--concurrency", "2", "--phases", "8:2"], "have the load 2 twice"),
        (["--rates", "2,2.0"], "have the load 2/s twice"),
        (["--phases", "8-2"], "seconds:amount"),
        (["--phases", "8:0.4"], "whole numbers"),
        (["--ramp-seconds", "9"], "--ramp-seconds is 9"),
        (["--measured", "/nowhere.json"], "/nowhere.json"),
        (["--measured", "a.json,a.json"], "--measured is a.json,a.json; it must be free of repetitions"),
        (["--picture", "/nowhere/out.svg"], "no folder"),
    ],
)
def test_a_flag_that_cannot_be_is_named(flags, words, capsys):
    assert main(["sweep", *flags]) == 2
    assert words in capsys.readouterr().err
