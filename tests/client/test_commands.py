"""The ``paceline`` command against a scripted router: output and exit codes."""

from __future__ import annotations

import io
import json
import sys

import grpc
import pytest

from client.cli import main
from paceline.errors import UnavailableError
from paceline.v1 import router_pb2


def test_generate_streams_the_text_and_says_the_figures_on_stderr(router, capsys):
    assert main(["generate", "--router", router.address, "Say", "hello"]) == 0
    out, err = capsys.readouterr()
    assert out == "Hello\n"
    assert "4 tokens" in err
    assert "2.50 tokens a round with a tree (2 of 2 rounds)" in err
    message = router.requests[0].chat.messages[0]
    assert (message.role, message.content) == ("user", "Say hello")


def test_generate_gives_one_json_object_where_asked(router, capsys):
    assert main(["generate", "hi", "--json", "--router", router.address]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["text"], document["token_ids"], document["finish_reason"]) == ("Hello", [5, 6, 7, 0], "stop")
    assert document["usage"] == {"prompt_tokens": 3, "completion_tokens": 4}
    assert document["speculation"]["mean_accepted_length"] == 2.5


@pytest.mark.parametrize("text", ["", "\n"])
def test_a_pipe_that_brings_no_prompt_is_refused(text, router, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert main(["generate", "-", "--router", router.address]) == 2
    assert "stdin holds no prompt" in capsys.readouterr().err
    assert router.requests == []


def test_generate_takes_raw_text_ids_a_system_message_and_stdin(router, monkeypatch, capsys):
    address = ["--router", router.address]
    monkeypatch.setattr(sys, "stdin", io.StringIO("from stdin"))
    assert main(["generate", "--raw", "as it stands", *address]) == 0
    assert main(["generate", "--token-ids", "1,2,3", *address]) == 0
    assert main(["generate", "--system", "be brief", "hi", *address]) == 0
    assert main(["generate", "-", *address]) == 0
    raw, ids, system, stdin = router.requests
    assert raw.text == "as it stands"
    assert list(ids.token_ids.ids) == [1, 2, 3]
    assert [message.role for message in system.chat.messages] == ["system", "user"]
    assert stdin.chat.messages[0].content == "from stdin"


def test_flags_of_sampling_speculation_and_service_travel(router, capsys):
    shape = ["--speculative-num-steps", "3", "--speculative-eagle-topk", "2", "--speculative-num-draft-tokens", "8"]
    sampling = ["--temperature", "0.5", "--top-k", "7", "--seed", "9", "--stop-token-ids", "4,5", "--ignore-eos"]
    terms = ["--tenant", "a", "--priority", "-2", "--deadline-s", "1.5"]
    assert main(["generate", "hi", *shape, *sampling, *terms, "--router", router.address]) == 0
    assert main(["generate", "hi", "--no-speculation", "--router", router.address]) == 0
    request, plain = router.requests
    assert request.speculation.shape.num_draft_tokens == 8
    params = request.sampling_params
    assert (params.temperature, params.top_k, params.seed, list(params.stop_token_ids)) == (0.5, 7, 9, [4, 5])
    assert params.ignore_eos
    assert (request.tenant, request.priority, request.deadline_s) == ("a", -2, 1.5)
    assert plain.speculation.disable


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["generate"], "give a prompt"),
        (["generate", "hi", "--token-ids", "1"], "not both"),
        (["generate", "hi", "--raw", "--system", "x"], "--raw"),
        (["generate", "--token-ids", "1", "--system", "x"], "--system"),
        (["generate", "hi", "--temperature", "-1"], "temperature is -1.0"),
        (["generate", "hi", "--max-tokens", "zero"], "--max-tokens"),
        (["generate", "--token-ids", "1,x"], "'x'"),
        (["generate", "hi", "--stop-token-ids", "1,,2"], "argument --stop-token-ids: '1,,2' has an empty item"),
        (["generate", "hi", "--speculative-num-steps", "3"], "all three or none"),
        (["generate", "hi", "--no-such-flag"], "--no-such-flag"),
        (["serve", "--targets", "0"], "--targets is 0"),
        (["serve", "--router-args", "'open"], "--router-args"),
        (["fly"], "no such command"),
    ],
)
def test_a_wrong_call_is_one_line_on_stderr_and_exit_code_2(argv, words, capsys):
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, 2),
        (grpc.StatusCode.UNIMPLEMENTED, 2),
        (grpc.StatusCode.FAILED_PRECONDITION, 3),
        (grpc.StatusCode.UNAVAILABLE, 4),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 1),
        (grpc.StatusCode.INTERNAL, 1),
    ],
)
def test_each_refusal_has_its_exit_code_and_the_services_words(router, code, exit_code, capsys):
    def refuse(request, context):
        context.abort(code, "the prompt has 9000 tokens; at most 8192 fit")
        yield

    router.script = refuse
    assert main(["generate", "hi", "--router", router.address]) == exit_code
    assert "the prompt has 9000 tokens" in capsys.readouterr().err


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("serve", "generate", "chat", "bench", "inspect", "demo", "fetch", "info"))
    assert main([]) == 2


def test_a_prompt_that_is_no_utf_8_is_refused(router, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8"))
    assert main(["generate", "-", "--router", router.address]) == 2
    assert "is no UTF-8: convert it first" in capsys.readouterr().err


def test_generate_takes_flags_from_a_file_and_those_of_the_command_line_win(router, tmp_path):
    path = tmp_path / "flags.toml"
    path.write_text(f'router = "{router.address}"\nmax-tokens = 7\nseed = 3\nignore-eos = true\n')
    assert main(["generate", "--config", str(path), "say", "hi", "--seed", "4"]) == 0
    params = router.requests[0].sampling_params
    assert (params.max_tokens, params.seed, params.ignore_eos) == (7, 4, True)
    assert router.requests[0].chat.messages[0].content == "say hi"


def test_generate_tells_what_broke_on_a_line_of_its_own(router, capsys):
    def break_off(request, context):
        yield router_pb2.GenerateResponse(text="Once", token_ids=[1])
        context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")

    router.script = break_off
    assert main(["generate", "--router", router.address, "go on"]) == UnavailableError.exit_code
    out, err = capsys.readouterr()
    assert out == "Once\n"
    assert "the connection broke" in err


def test_info_shows_each_replica(router, capsys):
    assert main(["info", "--router", router.address]) == 0
    out = capsys.readouterr().out
    assert "policy always" in out
    assert "127.0.0.1:2  ready" in out
    assert "127.0.0.1:4  not ready" in out
    assert main(["info", "--json", "--router", router.address]) == 0
    assert json.loads(capsys.readouterr().out)["info"]["model_name"] == "scripted"


def test_info_says_that_a_router_drains(router, capsys):
    router.info.draining = True
    assert main(["info", "--router", router.address]) == 0
    assert capsys.readouterr().out.partition("\n")[0].endswith("  draining")
