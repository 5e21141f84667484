"""When tokens wait for more of them, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from router import stream_pacer
from router.stream_pacer import StreamPacer


@dataclass
class Loop:
    now_s: float = 0.0
    timers: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, call: Callable[[], None]) -> object:
        self.timers.append((self.now_s + delay_s, call))
        return object()

    def run_until(self, now_s: float) -> None:
        self.now_s = now_s
        due = [timer for timer in self.timers if timer[0] <= now_s]
        self.timers = [timer for timer in self.timers if timer not in due]
        for _, call in due:
            call()


@dataclass(eq=False)
class Stream:
    taken: int = 1
    taken_at: float = 0.0
    untaken_steps: int = 1
    released: bool = False

    def release(self) -> None:
        self.released = True


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    monkeypatch.setattr(stream_pacer, "MESSAGES_PER_S", 100)
    return Loop()


def crowded(loop: Loop, num_streams: int = 10, max_steps: int = 8) -> StreamPacer:
    """num_streams have begun, so that each gets a message every num_streams / 100 seconds."""
    pacer = StreamPacer(max_steps, loop=loop)  # type: ignore[arg-type]
    for _ in range(num_streams):
        pacer.start()
    return pacer


def test_tokens_wait_while_the_stream_had_a_message_not_long_ago(loop: Loop) -> None:
    pacer, stream = crowded(loop), Stream()
    loop.now_s = 0.09
    assert pacer.holds(stream)
    loop.now_s = 0.11
    assert not pacer.holds(stream)


def test_first_tokens_and_those_of_many_steps_do_not_wait(loop: Loop) -> None:
    pacer = crowded(loop)
    assert not pacer.holds(Stream(taken=0))
    assert pacer.holds(Stream(untaken_steps=7))
    assert not pacer.holds(Stream(untaken_steps=8))


def test_an_interval_of_one_step_holds_nothing(loop: Loop) -> None:
    assert not crowded(loop, max_steps=1).holds(Stream())


def test_a_stream_whose_target_goes_silent_is_released_when_its_time_has_come(loop: Loop) -> None:
    pacer, early, late = crowded(loop), Stream(), Stream(taken_at=0.05)
    loop.now_s = 0.06
    assert pacer.holds(early) and pacer.holds(late)
    loop.run_until(0.161)
    assert early.released and late.released
    assert not loop.timers  # nothing is held


def test_what_was_sent_or_is_over_is_not_released(loop: Loop) -> None:
    pacer, sent, over = crowded(loop), Stream(), Stream()
    assert pacer.holds(sent) and pacer.holds(over)
    pacer.sent(sent)
    pacer.forget(over)
    loop.run_until(1.0)
    assert not sent.released and not over.released


def test_streams_that_ended_count_no_longer(loop: Loop) -> None:
    pacer = crowded(loop)
    for _ in range(9):
        pacer.forget(Stream())
    pacer.forget(Stream(taken=0))  # it never had a token
    loop.now_s = 0.02
    assert not pacer.holds(Stream())
