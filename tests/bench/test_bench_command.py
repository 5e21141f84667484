"""``python -m bench`` against a scripted router: what it sends, writes and refuses."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import grpc
import pytest

from bench.__main__ import main
from bench.chat_prompt import ChatPrompt
from bench.prompts import load_prompts, spread
from bench.workload_flags import DEFAULT_PROMPTS
from paceline.defaults import DEFAULT_MODEL_PATH
from paceline.errors import InvalidInputError
from tests.support.scripted_router import answer_hello
from tests.support.waiting import WAIT_S


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"prompt {i}"}) for i in range(6)) + "\n")
    return str(path)


def bench(router, prompts, tmp_path, *flags):
    out = tmp_path / "out.json"
    code = main(["--router", router.address, "--prompts", prompts, "--json", str(out), *flags])
    return code, json.loads(out.read_text())


def test_both_modes_send_every_prompt_with_its_own_seed(router, prompts, tmp_path):
    code, document = bench(router, prompts, tmp_path, "--seed", "40", "--temperature", "1", "--max-tokens", "9")
    assert code == 0
    measured = router.requests[2:]  # after a warm-up of each mode
    for mode, requests in (("plain", measured[:6]), ("speculative", measured[6:])):
        assert [request.chat.messages[0].content for request in requests] == [f"prompt {i}" for i in range(6)]
        assert [request.sampling_params.seed for request in requests] == list(range(40, 46))
        assert {request.sampling_params.max_tokens for request in requests} == {9}
        assert {request.speculation.disable for request in requests} == {mode == "plain"}
    assert [run["mode"] for run in document["runs"]] == ["plain", "speculative"]
    assert document["identical_outputs"] is True
    assert document["runs"][1]["mean_accepted_length"] == 2.5


def test_runs_are_interleaved_and_the_tree_travels_with_the_speculative_ones(router, prompts, tmp_path):
    shape = ["--speculative-num-steps", "5", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "6"]
    _, document = bench(router, prompts, tmp_path, "--repeat", "2", "--num-prompts", "2", *shape)
    assert [(run["mode"], run["repeat"]) for run in document["runs"]] == [
        ("plain", 0),
        ("speculative", 0),
        ("plain", 1),
        ("speculative", 1),
    ]
    nodes = [request.speculation.shape.num_draft_tokens for request in router.requests[2:]]
    assert nodes == [0, 0, 6, 6, 0, 0, 6, 6]


def test_as_many_requests_are_in_flight_as_asked_and_no_more(router, prompts, tmp_path):
    lock, running, most = threading.Lock(), 0, 0
    three = threading.Barrier(3, timeout=WAIT_S)

    def count(request, context):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        if request.sampling_params.max_tokens == 20:
            three.wait()
        with lock:
            running -= 1
        yield from answer_hello(request, context)

    router.script = count
    flags = ["--concurrency", "3", "--compare", "plain", "--max-tokens", "20"]
    code, document = bench(router, prompts, tmp_path, *flags)
    assert (code, most, document["runs"][0]["concurrency"]) == (0, 3, 3)


def test_a_failed_request_is_counted_and_ends_in_exit_code_1(router, prompts, tmp_path, capsys):
    def fail_the_third(request, context):
        if request.chat.messages[0].content == "prompt 3":
            context.abort(grpc.StatusCode.UNAVAILABLE, "the target is gone")
        yield from answer_hello(request, context)

    router.script = fail_the_third
    code, document = bench(router, prompts, tmp_path, "--compare", "plain")
    assert (code, document["runs"][0]["errors"], document["runs"][0]["requests"]) == (1, 1, 6)
    assert "the target is gone" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--concurrency", "0"], "--concurrency is 0"),
        (["--compare", "plain,fast"], "--compare is plain,fast"),
        (["--temperature", "nan"], "temperature is nan"),
        (["--speculative-num-steps", "5"], "all three or none"),
        (["--in-process", "--concurrency", "2"], "1 with --in-process"),
        (["--prompts", "/nowhere.jsonl"], "/nowhere.jsonl"),
        (["--json", "/nowhere/out.json"], "no folder"),
        (["--json", "/"], "is a folder"),
        (["--max-prompt-tokens", "1"], "at most 1 tokens"),
    ],
)
def test_a_flag_that_cannot_be_is_named_with_exit_code_2(flags, words, capsys):
    assert main(flags) == 2
    assert words in capsys.readouterr().err


def test_a_dtype_that_the_services_do_not_run_is_refused(router, prompts, capsys):
    assert main(["--router", router.address, "--prompts", prompts, "--dtype", "bfloat16"]) == 2
    assert "run float32" in capsys.readouterr().err


def test_speculation_without_a_draft_is_refused_before_anything_starts(prompts, capsys):
    assert main(["--drafts", "0", "--prompts", prompts]) == 2
    assert "--drafts is 0, and --compare has speculative" in capsys.readouterr().err


def test_a_router_that_is_not_there_is_exit_code_4(prompts, capsys):
    assert main(["--router", "127.0.0.1:1", "--prompts", prompts]) == 4
    assert "nothing answers at 127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("no json", r":2 is no JSON; write lines like {"),
        ("[]", r":2 is no JSON object; write lines like {"),
        ('{"text": "a"}', ":2 has no prompt"),
        ('{"prompt": ""}', ':2: prompt is ""; it must be a text'),
        ('{"prompt": null}', ":2: prompt is null; it must be a text"),
    ],
)
def test_a_line_without_a_prompt_is_named(tmp_path, line, words):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "good"}\n' + line + "\n")
    with pytest.raises(InvalidInputError, match=r"prompts\.jsonl" + words):
        load_prompts(str(path))


def test_a_part_of_the_prompts_is_spread_over_the_file():
    assert spread([str(i) for i in range(10)], 4) == ["0", "2", "5", "7"]
    assert spread(["a", "b"], 5) == ["a", "b"]


def test_the_default_prompts_are_many_and_varied():
    lines = [json.loads(line) for line in Path(DEFAULT_PROMPTS).read_text(encoding="utf-8").splitlines()]
    assert len({line["prompt"] for line in lines}) == len(lines) >= 64
    assert {line["category"] for line in lines} == {"chat", "code", "maths", "summary", "translation"}
    template = ChatPrompt(DEFAULT_MODEL_PATH)
    lengths = [len(template.ids(line["prompt"])) for line in lines]
    assert sum(length >= 150 for length in lengths) >= 12
    assert max(lengths) <= 320


@pytest.mark.parametrize("flags", [["--drafts", "0"], ["--log-dir", "/x"], ["--target-args=--max-running-requests 4"]])
def test_flags_of_services_to_start_are_refused_beside_a_router_that_runs(flags, capsys):
    assert main(["--router", "127.0.0.1:1", *flags]) == 2
    name = flags[0].partition("=")[0]
    assert f"{name} is for services that are started here, and --router measures services that run" in (
        capsys.readouterr().err
    )
