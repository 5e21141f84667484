"""``paceline chat`` against a scripted router."""

from __future__ import annotations

import io
import sys

import grpc

from client.cli import main
from paceline.errors import UnavailableError
from paceline.v1 import common_pb2, router_pb2


def chat(router, monkeypatch, lines, *flags):
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines) + "\n"))
    return main(["chat", "--router", router.address, *flags])


def test_chat_sends_the_whole_conversation_and_forgets_it_on_reset(router, monkeypatch, capsys):
    lines = ["first", "second", "", "/reset", "third", "/what", "/exit", "never sent"]
    assert chat(router, monkeypatch, lines, "--system", "be brief") == 0
    turns = [[message.content for message in request.chat.messages] for request in router.requests]
    assert turns == [
        ["be brief", "first"],
        ["be brief", "first", "Hello", "second"],
        ["be brief", "third"],
    ]
    assert capsys.readouterr().out == "Hello\n" * 3


def test_chat_leaves_out_a_line_that_is_no_utf_8_and_goes_on(router, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"first\n\xff bad\nsecond\n"), encoding="utf-8"))
    assert main(["chat", "--router", router.address]) == 0
    assert [request.chat.messages[-1].content for request in router.requests] == ["first", "second"]
    assert capsys.readouterr().err.count("this line is no UTF-8 and was left out") == 1


def test_chat_goes_on_after_a_refused_message(router, monkeypatch, capsys):
    def refuse_long(request, context):
        if len(request.chat.messages[-1].content) > 10:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the prompt is too long")
        yield router_pb2.GenerateResponse(
            text="ok",
            token_ids=[1],
            finish_reason=common_pb2.FINISH_REASON_STOP,
            usage=router_pb2.Usage(completion_tokens=1),
        )

    router.script = refuse_long
    assert chat(router, monkeypatch, ["a message that is long", "short"]) == 0
    assert [message.content for message in router.requests[1].chat.messages] == ["short"]
    assert "the prompt is too long" in capsys.readouterr().err


def test_chat_from_a_file_ends_where_the_router_fails(router, monkeypatch, capsys):
    def break_off(request, context):
        yield router_pb2.GenerateResponse(text="Once", token_ids=[1])
        context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")

    router.script = break_off
    assert chat(router, monkeypatch, ["first", "second"]) == UnavailableError.exit_code
    assert len(router.requests) == 1
    out, err = capsys.readouterr()
    assert out == "Once\n"
    assert "the connection broke" in err
