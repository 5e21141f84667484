"""A mailbox gives out what was put, wakes its thread for events and sources, and lets go of these in the end."""

from __future__ import annotations

import os
import resource
import select
import socket
import threading
import time
from collections.abc import Callable

import pytest

from kernels import busy_wait
from paceline.mailbox import Look, Mailbox
from tests.support.waiting import WAIT_S


class Words:
    """A source whose bytes are events, until the other end closes."""

    def __init__(self, mailbox: Mailbox[bytes]) -> None:
        self.ours, self.theirs = socket.socketpair()
        self._mailbox = mailbox
        self.is_forsaken = False

    def fileno(self) -> int:
        return self.ours.fileno()

    def take_in(self) -> bool:
        word = self.ours.recv(100)
        if word:
            self._mailbox.put(word)
        else:
            self.ours.close()
        return bool(word)

    def forsake(self) -> None:
        self.is_forsaken = True
        self.ours.close()


def taken(mailbox: Mailbox[bytes]) -> list[bytes]:
    """What is taken next, however often the thread is woken for nothing."""
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        if events := mailbox.take(WAIT_S):
            return events
    raise AssertionError("nothing came")


def test_events_come_in_order_and_an_empty_mailbox_gives_none_in_time() -> None:
    mailbox = Mailbox[bytes]()
    assert mailbox.take(0.0) == []
    assert mailbox.take(0.001) == []
    for word in (b"a", b"b", b"c"):
        mailbox.put(word)
    assert mailbox.take(None) == [b"a", b"b", b"c"]
    assert mailbox.take(0.0) == []


@pytest.mark.parametrize("how", ["put", "source", "watch"])
def test_a_thread_that_waits_is_woken(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    is_waiting = threading.Event()
    wait = select.select
    monkeypatch.setattr(select, "select", lambda *args: (is_waiting.set(), wait(*args))[1])
    mailbox = Mailbox[bytes]()
    source = Words(mailbox)
    if how == "source":
        mailbox.watch(source)
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.extend(taken(mailbox)))
    thread.start()
    wake: dict[str, Callable[[], object]] = {
        "put": lambda: mailbox.put(b"word"),
        "source": lambda: source.theirs.send(b"word"),
        "watch": lambda: (source.theirs.send(b"word"), mailbox.watch(source)),
    }
    assert is_waiting.wait(WAIT_S)
    wake[how]()
    thread.join(WAIT_S)
    assert got == [b"word"]
    mailbox.close()
    source.ours.close()
    source.theirs.close()


def test_a_source_that_ends_is_looked_at_no_more_and_the_others_are() -> None:
    mailbox = Mailbox[bytes]()
    first, second = Words(mailbox), Words(mailbox)
    mailbox.watch(first)
    mailbox.watch(second)
    first.theirs.close()
    second.theirs.send(b"still here")
    assert taken(mailbox) == [b"still here"]
    assert mailbox.take(0.0) == []
    assert (first.fileno(), first.is_forsaken) == (-1, False)
    mailbox.close()
    assert second.is_forsaken
    late = Words(mailbox)
    mailbox.watch(late)
    assert late.is_forsaken, "the mailbox is closed"
    second.theirs.close()
    late.theirs.close()


def test_descriptors_that_select_does_not_take_are_polled() -> None:
    high = 1500
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft <= high:
        pytest.skip("this system has no descriptors so high")
    mailbox = Mailbox[bytes]()
    source = Words(mailbox)
    low, source.ours = source.ours, socket.socket(fileno=os.dup2(source.ours.fileno(), high))
    low.close()
    mailbox.watch(source)
    source.theirs.send(b"word")
    assert taken(mailbox) == [b"word"]
    assert mailbox.take(0.001) == []
    source.theirs.send(b"word")
    assert mailbox.gather()
    mailbox.put(b"another")
    assert mailbox.take(0.0) == [b"word", b"another"], "what was gathered came first"
    mailbox.close()
    source.theirs.close()
    assert not mailbox.gather()


@pytest.fixture(params=["in turns", "by C"])
def look(request: pytest.FixtureRequest) -> Look | None:
    if request.param == "in turns":
        return None
    return busy_wait.LOOK or pytest.skip("the C extension is not built")


def test_a_wait_after_a_source_spoke_does_not_sleep_and_still_ends_in_time(
    look: Look | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeps: list[float | None] = []
    wait = select.select
    monkeypatch.setattr(select, "select", lambda *args: (sleeps.append(args[3]), wait(*args))[1])
    mailbox = Mailbox[bytes](busy_wait_s=WAIT_S, look=look)
    source = Words(mailbox)
    mailbox.watch(source)
    assert mailbox.take(0.001) == [], "nothing was said yet"
    assert any(sleeps), "so it slept"
    source.theirs.send(b"word")
    assert taken(mailbox) == [b"word"]
    sleeps.clear()
    since_s = time.monotonic()
    assert mailbox.take(0.002) == []
    assert time.monotonic() - since_s >= 0.002
    assert not any(sleeps)
    assert (len(sleeps) > 2) == (look is None), "by C there is one look of Python's, at the end"
    teller = threading.Timer(0.01, source.theirs.send, [b"more"])
    teller.start()
    assert mailbox.take(WAIT_S / 2) == [b"more"], "it came while the thread was looking"
    assert not any(sleeps)
    mailbox.put(b"put")
    assert mailbox.take(None) == [b"put"]
    mailbox.close()
    source.theirs.close()
    teller.join()


def test_a_wait_that_keeps_looking_rehearses_now_and_then_and_no_other_does(look: Look | None) -> None:
    rehearsed: list[float] = []
    mailbox = Mailbox[bytes](WAIT_S, lambda: rehearsed.append(time.monotonic()), look=look)
    source = Words(mailbox)
    mailbox.watch(source)
    assert mailbox.take(0.01) == []
    assert not rehearsed, "nothing was said yet"
    source.theirs.send(b"word")
    assert taken(mailbox) == [b"word"]
    assert mailbox.gather()
    assert not rehearsed, "it did not wait"
    assert mailbox.take(0.03) == []
    assert 1 <= len(rehearsed) <= 15
    mailbox.close()
    source.theirs.close()
