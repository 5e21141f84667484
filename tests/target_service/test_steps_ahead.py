"""Steps launched behind one under way, before its tokens are known, over a device that computes on its own: the loop is
told so of the CPU."""

import pytest

from paceline.types import FinishReason, SamplingParams, TreeShape
from target_service.engine_loop import LONGEST_LOOK_S
from target_service.events import Cancelled, SpeculationUpdated
from target_service.step_runner import PendingStep
from tests.support.tiny_target import STREAM, DrivenLoop, always, off, random_prompt

TREE = TreeShape(3, 2, 6)
PROMPTS = [random_prompt(length, seed=length) for length in (4, 33, 9, 18, 1)]
SAMPLED = SamplingParams(max_tokens=24, temperature=0.9, seed=7, ignore_eos=True)


def make_ahead(make_loop, **changes) -> DrivenLoop:
    loop = make_loop(**changes)
    loop.parts.runner.is_asynchronous = True
    return loop


@pytest.fixture
def loop(make_loop) -> DrivenLoop:
    return make_ahead(make_loop)


def answers(loop: DrivenLoop, params: list[SamplingParams], **options) -> list[list[int]]:
    """Requests that arrive two turns apart."""
    outputs = []
    for number, (prompt, one) in enumerate(zip(PROMPTS, params, strict=True), start=1):
        outputs.append(loop.submit(number, prompt, params=one, **options))
        loop.turn()
        loop.turn()
    loop.run()
    loop.check_all_pages_free()
    return [output.tokens for output in outputs]


def count_ahead(loop: DrivenLoop, monkeypatch) -> list[bool]:
    """For each launch from now on, whether its tokens were still to be drawn."""
    seen: list[bool] = []
    launch = loop.parts.runner.launch

    def watched(plan, *args, **options):
        seen.append(plan.num_drawn > 0)
        return launch(plan, *args, **options)

    monkeypatch.setattr(loop.parts.runner, "launch", watched)
    return seen


def test_the_tokens_are_those_of_steps_one_after_the_other(make_loop, loop, monkeypatch):
    params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (20, 1, 7, 30)] + [SAMPLED]
    wanted = answers(make_ahead(make_loop, disable_overlap_schedule=True), params)
    seen = count_ahead(loop, monkeypatch)
    assert answers(loop, params) == wanted
    assert sum(seen) > 20


def test_without_overlap_no_step_is_ahead(make_loop, monkeypatch):
    loop = make_ahead(make_loop, disable_overlap_schedule=True)
    seen = count_ahead(loop, monkeypatch)
    loop.generate(PROMPTS[0], SAMPLED)
    assert seen
    assert not any(seen)


def test_what_a_request_draws_past_its_end_is_cut(make_loop, loop):
    long = loop.generate(PROMPTS[2], SamplingParams(max_tokens=30, ignore_eos=True))
    stop = next(token for token in long[3:] if long.index(token) >= 3)
    params = SamplingParams(max_tokens=30, ignore_eos=True, stop_token_ids=(stop,))
    other = loop.submit(50, PROMPTS[0], params=SamplingParams(max_tokens=40, ignore_eos=True))
    ended = loop.submit(51, PROMPTS[2], params=params)
    loop.run()
    assert ended.tokens == long[: long.index(stop) + 1]
    assert ended.reason is FinishReason.STOP
    assert len(other.tokens) == 40
    assert make_loop().generate(PROMPTS[0], SamplingParams(max_tokens=40, ignore_eos=True)) == other.tokens
    loop.check_all_pages_free()


def test_a_row_that_is_given_on_while_a_step_has_it_keeps_the_newcomers_tokens(make_loop):
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    plain = make_loop()
    long = plain.generate(PROMPTS[0], params)
    wanted = plain.generate(PROMPTS[3], params)
    loop = make_ahead(make_loop, max_running_requests=1)
    stopped = SamplingParams(max_tokens=12, ignore_eos=True, stop_token_ids=(long[4],))
    first = loop.submit(1, PROMPTS[0], params=stopped)
    while first.finish is None:
        loop.turn()
    second = loop.submit(2, PROMPTS[3], params=params)
    loop.run()
    assert first.tokens == long[: long.index(long[4]) + 1]
    assert second.tokens == wanted
    loop.check_all_pages_free()


def test_a_stop_at_the_first_token_ends_a_request(loop):
    first = loop.generate(PROMPTS[1], SamplingParams(max_tokens=4, ignore_eos=True))[0]
    params = SamplingParams(max_tokens=4, ignore_eos=True, stop_token_ids=(first,))
    assert loop.generate(PROMPTS[1], params) == [first]
    loop.check_all_pages_free()


def test_a_cancel_ends_a_request_whose_next_step_is_under_way(loop):
    cancelled = loop.submit(1, PROMPTS[0], params=SamplingParams(max_tokens=60, ignore_eos=True))
    other = loop.submit(2, PROMPTS[3], params=SamplingParams(max_tokens=30, ignore_eos=True))
    for _ in range(6):
        loop.turn()
    loop.put(Cancelled(STREAM, [1]))
    loop.run()
    assert cancelled.reason is FinishReason.CANCELLED
    assert len(other.tokens) == 30
    loop.check_all_pages_free()


def test_rows_reach_a_draft_that_is_not_asked(loop, head_draft):
    output = loop.submit(1, PROMPTS[0], params=SamplingParams(max_tokens=80, ignore_eos=True), decision=off())
    while len(output.tokens) < 60:
        loop.turn()
        head_draft.serve()
    (session,) = head_draft.sessions.values()
    assert len(session.tokens) > 30


def test_a_request_that_begins_to_speculate_is_asked_after_the_steps_under_way(make_loop, loop, head_draft):
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    wanted = make_loop().generate(PROMPTS[0], params)
    output = loop.submit(1, PROMPTS[0], params=params, decision=off())
    while len(output.tokens) < 20:
        loop.turn()
        head_draft.serve()
    loop.put(SpeculationUpdated(STREAM, [1], [always(TREE)]))
    while output.finish is None:
        loop.turn()
        head_draft.serve()
    assert output.tokens == wanted
    assert output.finish.stats.speculative_rounds > 5


def test_a_step_that_is_over_sooner_than_expected_is_not_slept_through(loop, monkeypatch):
    is_over = False
    monkeypatch.setattr(PendingStep, "is_over", lambda step: is_over)
    monkeypatch.setattr(loop.parts.times, "at_warm_up", lambda num_rows: 50.0)
    output = loop.submit(1, PROMPTS[0], params=SAMPLED)
    for _ in range(3):  # the clock stands still: the end that is expected does not come
        assert 0 < loop.turn() <= LONGEST_LOOK_S
    assert not output.tokens
    is_over = True
    loop.turn()
    loop.turn()
    assert output.tokens
    loop.run()
    loop.check_all_pages_free()
