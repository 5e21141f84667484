"""Prompts beside running streams: how large the router lets a target's steps become."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from router.peer import TargetLoad
from router.prefill_pacing import MIN_CHUNK, UNBOUNDED, PrefillPacing, StepBounds
from router.rates import StepTimes

FLAG_CHUNK = 512


class Machine:
    """A target by its step time alone, with one decoding stream and a prompt that never ends."""

    def __init__(self, step_ms: Callable[[int], float], *, target_tpot_ms: float, decode_rows: int = 1) -> None:
        self.step_ms = step_ms
        self.decode_rows = decode_rows
        self.chunk = FLAG_CHUNK
        self.sent: list[StepBounds] = []
        self.times = StepTimes()
        self.pacing = PrefillPacing(target_tpot_ms)
        self._now = 0.0

    def report(self, *, prefill_tokens: int, decoding: int = 1, new_tokens: int = 1) -> float:
        """A step's time."""
        rows = decoding * self.decode_rows + prefill_tokens
        load = TargetLoad(decoding, rows=rows, prefill_tokens=prefill_tokens, step_ms=self.step_ms(rows))
        self._now += load.step_ms / 1e3
        self.times.observe(load, new_tokens=new_tokens * decoding, num_streams=decoding, now=self._now)
        bounds = self.pacing.revise(load, self.times, self._now)
        if bounds is not None:
            self.sent.append(bounds)
            self.chunk = min(FLAG_CHUNK, bounds.chunked_prefill_size)
        return load.step_ms

    def run(self, num_steps: int, *, without_prompt: int = 10) -> list[float]:
        """Times of mixed steps; one of so many has no prompt."""
        prompts = [step % without_prompt > 0 for step in range(1, num_steps + 1)]
        return [self.report(prefill_tokens=self.chunk if prompt else 0) for prompt in prompts]


def linear(rows: int) -> float:
    return 20.0 + 0.25 * rows


def convex(rows: int) -> float:
    """Like a GPU's: the first hundred rows are nearly free."""
    return 4.6 + max(0.0, 0.002 * rows) + max(0.0, 0.022 * (rows - 128))


def test_a_step_with_a_prompt_takes_no_longer_than_the_streams_allow() -> None:
    for shape, target_ms in ((linear, 40.0), (convex, 7.0), (convex, 5.0)):
        machine = Machine(shape, target_tpot_ms=target_ms)
        machine.run(60)
        steady = machine.run(60)
        assert max(steady) <= 1.3 * target_ms, (target_ms, max(steady))
        assert machine.chunk > MIN_CHUNK


def test_steps_without_a_prompt_need_not_be_seen() -> None:
    for shape, target_ms in ((linear, 40.0), (convex, 7.0)):
        machine = Machine(shape, target_tpot_ms=target_ms)
        machine.run(100, without_prompt=1000)
        steady = machine.run(60, without_prompt=1000)
        assert max(steady) <= 1.3 * target_ms, (target_ms, max(steady))
        assert machine.chunk > MIN_CHUNK


def test_bounds_settle_instead_of_being_sent_again_and_again() -> None:
    machine = Machine(convex, target_tpot_ms=7.0)
    machine.run(100)
    before = len(machine.sent)
    machine.run(400)
    assert len(machine.sent) - before <= 4


def test_a_stream_that_gets_several_tokens_a_step_allows_longer_steps() -> None:
    chunks = []
    for new_tokens in (1, 2):
        machine = Machine(linear, target_tpot_ms=40.0)
        for step in range(80):
            machine.report(prefill_tokens=0 if step % 4 == 0 else machine.chunk, new_tokens=new_tokens)
        chunks.append(machine.chunk)
    assert chunks[1] > 1.5 * chunks[0]


def test_prompts_go_on_however_late_the_streams_are() -> None:
    machine = Machine(linear, target_tpot_ms=5.0)
    machine.run(30)
    assert machine.chunk == MIN_CHUNK


def test_without_running_streams_nothing_is_bounded() -> None:
    machine = Machine(linear, target_tpot_ms=40.0)
    machine.report(prefill_tokens=512, decoding=0)
    assert machine.sent == []
    machine.run(30)
    assert machine.chunk < FLAG_CHUNK
    machine.report(prefill_tokens=64, decoding=0)
    assert machine.sent[-1] == StepBounds(UNBOUNDED, UNBOUNDED)


def test_trees_do_not_take_the_rows_that_were_left_to_prompts() -> None:
    machine = Machine(linear, target_tpot_ms=60.0, decode_rows=16)
    machine.run(60)
    bounds = machine.sent[-1]
    assert bounds.chunked_prefill_size + 16 <= bounds.max_rows <= bounds.chunked_prefill_size + 2 * 16


def test_nothing_is_sent_before_both_kinds_of_step_were_measured() -> None:
    pacing, times = PrefillPacing(10.0), StepTimes()
    load = TargetLoad(1, rows=1, step_ms=20.0)
    times.observe(load, new_tokens=1, num_streams=1, now=0.0)
    assert pacing.revise(load, times, 0.0) is None
    mixed = dataclasses.replace(load, rows=101, prefill_tokens=100, step_ms=45.0)
    times.observe(mixed, new_tokens=1, num_streams=1, now=0.1)
    assert pacing.revise(mixed, times, 0.1) is not None
