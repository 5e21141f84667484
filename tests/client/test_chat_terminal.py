"""``paceline chat`` on a terminal: Ctrl-C and Ctrl-D."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest

from paceline.v1 import common_pb2, router_pb2
from tests.support.scripted_router import ScriptedRouter
from tests.support.waiting import WAIT_S

ROOT = Path(__file__).resolve().parents[2]


class ChatTerminal:
    """A conversation with the command, as somebody at a terminal has it."""

    def __init__(self, address: str) -> None:
        self._ours, theirs = pty.openpty()
        self._name = os.ttyname(theirs)
        command = [sys.executable, "-m", "client.cli", "chat", "--router", address]
        pipes = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        self.process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "TERM": "dumb"}, **pipes)
        os.close(theirs)

    def read_until(self, words: str) -> str:
        """What was shown, until it ends with the words."""
        shown = ""
        while not shown.endswith(words):
            assert select.select([self._ours], [], [], WAIT_S)[0], f"{words!r} did not come after {shown!r}"
            shown += os.read(self._ours, 1).decode()
        return shown.replace("\r\n", "\n")

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def press_ctrl_d(self) -> None:
        """While an answer comes; returns once the terminal holds it for the command."""
        self.type("\x04")
        terminal = os.open(self._name, os.O_RDONLY | os.O_NOCTTY)
        assert select.select([terminal], [], [], WAIT_S)[0], "the terminal does not hold it"
        os.close(terminal)

    def press_ctrl_c(self) -> None:
        """Once the command waits: Python's readline does not see one that comes just before its select."""
        deadline_s = time.monotonic() + WAIT_S
        while psutil.Process(self.process.pid).status() != psutil.STATUS_SLEEPING:
            assert time.monotonic() < deadline_s, "the command never waits"
        self.process.send_signal(signal.SIGINT)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def terminal(router: ScriptedRouter) -> Iterator[ChatTerminal]:
    terminal = ChatTerminal(router.address)
    yield terminal
    terminal.close()


@pytest.fixture
def asked(router: ScriptedRouter) -> threading.Event:
    """Set when a question has reached the router, which answers without end; one that says "nothing" gets no word."""
    event = threading.Event()

    def answer(request, context):
        stopped = threading.Event()
        context.add_callback(stopped.set)
        event.set()
        if request.chat.messages[-1].content != "nothing":
            yield router_pb2.GenerateResponse(text="Once", token_ids=[5], prompt_ids=[1])
        stopped.wait(WAIT_S)

    router.script = answer
    return event


def test_ctrl_c_stops_an_answer_and_leaves_the_conversation(router, terminal, asked):
    terminal.read_until("> ")
    terminal.type("tell me\n")
    terminal.read_until("Once")
    terminal.press_ctrl_c()
    assert terminal.read_until("> ") == " [stopped]\n> "
    assert router.ended.wait(WAIT_S)
    terminal.type("and then\n")
    terminal.read_until("Once")
    turns = [(message.role, message.content) for message in router.requests[-1].chat.messages]
    assert turns == [("user", "tell me"), ("assistant", "Once"), ("user", "and then")]


def test_a_question_that_was_stopped_before_the_first_word_is_forgotten(router, terminal, asked):
    terminal.read_until("> ")
    terminal.type("nothing\n")
    assert asked.wait(WAIT_S)
    terminal.press_ctrl_c()
    terminal.read_until("[stopped]\r\n> ")
    terminal.type("tell me\n")
    terminal.read_until("Once")
    assert [message.content for message in router.requests[-1].chat.messages] == ["tell me"]


def test_ctrl_c_at_the_prompt_ends_the_chat_on_a_line_of_its_own(terminal):
    terminal.read_until("> ")
    terminal.type("half a li")
    terminal.read_until("half a li")
    terminal.press_ctrl_c()
    assert terminal.read_until("interrupted\r\n") == "\npaceline chat: interrupted\n"
    assert terminal.process.wait(WAIT_S) == 130


def test_ctrl_d_at_the_prompt_ends_the_chat_on_a_line_of_its_own(terminal):
    terminal.read_until("> ")
    terminal.type("\x04")
    assert terminal.read_until("\r\n") == "\n"
    assert terminal.process.wait(WAIT_S) == 0


@pytest.fixture
def go_on(router: ScriptedRouter) -> Iterator[threading.Event]:
    """The router says one word, waits for this, and breaks off where it was asked to "break", or else ends."""
    event = threading.Event()

    def answer(request, context):
        yield router_pb2.GenerateResponse(text="Once", token_ids=[5], prompt_ids=[1])
        event.wait(WAIT_S)
        if request.chat.messages[-1].content == "break":
            context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")
        yield router_pb2.GenerateResponse(
            token_ids=[0],
            offset=1,
            finish_reason=common_pb2.FINISH_REASON_STOP,
            usage=router_pb2.Usage(prompt_tokens=1, completion_tokens=2),
        )

    router.script = answer
    yield event
    event.set()


def test_an_answer_that_breaks_off_leaves_the_conversation_before_it(router, terminal, go_on):
    go_on.set()
    terminal.read_until("> ")
    for question in ("first", "break", "break"):
        terminal.type(f"{question}\n")
        shown = terminal.read_until("\r\n> ")
    assert re.search(
        r"Once\n.*the connection broke.*\nthis question and its answer are forgotten: ask again\n> $", shown
    )
    terminal.type("last\n")
    terminal.read_until("Once\r\n> ")
    contents = [message.content for message in router.requests[-1].chat.messages]
    assert contents == ["first", "Once", "last"]


def test_ctrl_d_while_an_answer_comes_leaves_after_it(router, terminal, go_on):
    terminal.read_until("> ")
    terminal.type("tell me\n")
    terminal.read_until("Once")
    terminal.press_ctrl_d()
    go_on.set()
    assert terminal.process.wait(WAIT_S) == 0
