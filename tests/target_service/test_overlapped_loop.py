"""What leaves the decode loop when, over a device that computes on its own: the loop is told so of the CPU."""

import dataclasses

import numpy as np
import pytest

from paceline.types import SamplingParams, TreeShape
from target_service.draft_rows import FLUSH_ROWS
from target_service.engine_loop import IDLE_WAIT_S
from target_service.events import Cancelled, Stopped
from tests.support.tiny_target import DRAFT, STREAM, DrivenLoop, always, off, random_prompt

TREE = TreeShape(4, 3, 10)
LONG = SamplingParams(max_tokens=40, ignore_eos=True)


@pytest.fixture
def loop(make_loop) -> DrivenLoop:
    loop = make_loop(disable_overlap_schedule=True)
    loop.parts.runner.is_asynchronous = True
    return loop


def watch_launches(loop, monkeypatch) -> list[int]:
    """For each launch from now on, how many emissions had left by then."""
    seen = []
    launch = loop.parts.runner.launch

    def watched(*args, **options):
        seen.append(len(loop.emissions))
        return launch(*args, **options)

    monkeypatch.setattr(loop.parts.runner, "launch", watched)
    return seen


def test_a_steps_tokens_leave_after_the_next_launch(loop, monkeypatch):
    loop.turn()
    seen = watch_launches(loop, monkeypatch)
    output = loop.submit(1, random_prompt(4))
    start = len(loop.emissions)
    for _ in range(4):
        loop.turn()
    assert seen == [start, start, start + 1, start + 2]
    assert len(output.tokens) == 3


def turns(loop) -> float:
    """Until all that is due has happened; how long the loop would wait then."""
    for _ in range(5):
        loop.turn()
    return loop.turn()


def test_tokens_wait_for_trees_that_come_soon_but_for_a_first_token_and_no_longer_than_2_ms(loop, head_draft):
    output = loop.submit(50, random_prompt(5), params=LONG, decision=always(TREE))
    assert turns(loop) > 0.002
    assert len(output.tokens) == 1, "of the prompt's step, though its draft has not answered"
    head_draft.serve()
    assert 0.0 < turns(loop) <= 0.002
    assert len(output.tokens) == 1
    loop.clock.sleep(0.0021)
    assert turns(loop) > 0.002
    of_two_steps = len(output.tokens)
    assert of_two_steps > 1, "2 ms after the ask"
    head_draft.serve()
    turns(loop)
    assert len(output.tokens) == of_two_steps
    head_draft.serve()
    turns(loop)
    assert len(output.tokens) > of_two_steps, "the next step was launched"
    head_draft.run()
    assert len(output.tokens) == 40
    loop.check_all_pages_free()


def test_news_of_a_request_that_ends_waits_for_no_tree(loop, head_draft):
    other = loop.submit(50, random_prompt(5), params=LONG, decision=always(TREE))
    short = loop.submit(51, random_prompt(6), params=SamplingParams(max_tokens=2, ignore_eos=True), decision=off())
    while not short.tokens:
        loop.turn()
    head_draft.serve()
    turns(loop)
    assert short.finish is not None
    loop.clock.sleep(0.0021)
    turns(loop)
    head_draft.serve()
    turns(loop)
    told = len(other.tokens)
    loop.put(Cancelled(STREAM, [50]))
    turns(loop)
    assert other.finish is not None
    assert len(other.tokens) > told, "with the tokens that waited"
    loop.check_all_pages_free()


def test_the_last_tokens_leave_at_once_where_no_step_follows(loop):
    output = loop.submit(1, random_prompt(4), params=SamplingParams(max_tokens=2, ignore_eos=True))
    loop.turn()
    loop.turn()
    assert output.finish is None
    loop.turn()
    assert len(output.tokens) == 2
    assert output.finish is not None
    loop.check_all_pages_free()


def test_the_last_tokens_leave_when_the_loop_stops(loop):
    output = loop.submit(1, random_prompt(4))
    loop.turn()
    loop.put(Stopped())
    loop.loop.run()
    assert output.tokens


def test_a_cancel_leaves_with_the_tokens_before_it(loop):
    output = loop.submit(1, random_prompt(4), params=LONG)
    other = loop.submit(2, random_prompt(5), params=LONG)
    for _ in range(3):
        loop.turn()
    loop.put(Cancelled(STREAM, [1]))
    loop.turn()
    assert output.finish is not None
    assert len(output.tokens) == 3
    loop.run()
    loop.turn()
    assert len(other.tokens) == 40
    loop.check_all_pages_free()


def test_an_ask_leaves_before_the_tokens_of_its_step(loop, make_prophet):
    prompt = random_prompt(6)
    draft = make_prophet([prompt + loop.generate(prompt, LONG)])
    loop.submit(50, prompt, params=LONG, decision=always(TREE))
    loop.turn()
    draft.serve()
    while len(draft.asks) < 2:
        loop.turn()
        asked, told = len(loop.orders), len(loop.emissions)
        draft.serve()
    loop.turn()
    assert len(loop.orders) > asked
    assert len(loop.emissions) == told + 1, "the emission of the step before"


@pytest.mark.parametrize("seed", range(3))
def test_trees_change_no_token(loop, make_prophet, seed):
    prompts = [random_prompt(n, seed=n) for n in (3, 16, 30)]
    plain = [loop.generate(prompt, LONG) for prompt in prompts]
    draft = make_prophet([p + t for p, t in zip(prompts, plain, strict=True)], seed)
    outputs = [loop.submit(50 + i, p, params=LONG, decision=always(TREE)) for i, p in enumerate(prompts)]
    draft.run()
    while loop.turn() < IDLE_WAIT_S:
        pass
    assert [output.tokens for output in outputs] == plain
    assert sum(output.finish.stats.accepted_drafts for output in outputs) > 20
    loop.check_all_pages_free()


def test_rows_that_are_flushed_leave_after_the_next_launch(loop, head_draft, monkeypatch):
    params = dataclasses.replace(LONG, max_tokens=120)
    loop.submit(50, random_prompt(4), params=params, decision=off())
    seen = []
    launch = loop.parts.runner.launch

    def watched(*args, **options):
        seen.append(sum(len(orders[DRAFT].syncs) for orders in loop.orders if DRAFT in orders))
        return launch(*args, **options)

    monkeypatch.setattr(loop.parts.runner, "launch", watched)
    held = []
    for _ in range(FLUSH_ROWS + 8):
        loop.turn()
        head_draft.serve()
        held.append(sum(len(session.tokens) for session in head_draft.sessions.values()))
    flushed = int(np.flatnonzero(np.array(held) > 4)[0])
    assert seen[flushed] == seen[flushed - 1], "the launch did not wait for the rows"
