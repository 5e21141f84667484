"""The decode loop over a real tiny model, without drafts."""

import numpy as np
import pytest

from paceline.types import FinishReason, SamplingParams
from target_service.emission import ReturnReason
from target_service.events import Cancelled, PolicySet, StreamClosed, StreamOpened
from tests.support.tiny_target import EOS, STREAM, random_prompt


def test_a_batch_gives_every_request_the_tokens_it_gets_alone(loop):
    prompts = [random_prompt(n, seed=n) for n in (1, 3, 16, 17, 40)]
    alone = [loop.generate(prompt) for prompt in prompts]
    outputs = [loop.submit(100 + i, prompt) for i, prompt in enumerate(prompts)]
    loop.run()
    assert [output.tokens for output in outputs] == alone
    assert all(len(tokens) == 8 for tokens in alone)
    loop.check_all_pages_free()


@pytest.mark.parametrize("prompt_len", [15, 16, 17, 32])
def test_chunked_prefill_gives_the_tokens_of_prefill_in_one_chunk(make_loop, prompt_len):
    prompt = random_prompt(prompt_len)
    whole = make_loop(chunked_prefill_size=64).generate(prompt)
    assert make_loop(chunked_prefill_size=16).generate(prompt) == whole
    assert make_loop(chunked_prefill_size=5).generate(prompt) == whole


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_a_request_gets_as_many_tokens_as_it_asked_for(loop, max_tokens):
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    output = loop.submit(1, random_prompt(5), params=params)
    loop.run()
    assert len(output.tokens) == max_tokens
    assert output.reason is FinishReason.LENGTH
    loop.check_all_pages_free()


def test_a_stop_token_is_the_last_token(loop):
    prompt = random_prompt(6)
    tokens = loop.generate(prompt, SamplingParams(max_tokens=6, ignore_eos=True))
    stop = tokens[3]
    output = loop.submit(50, prompt, params=SamplingParams(max_tokens=6, ignore_eos=True, stop_token_ids=(stop,)))
    loop.run()
    assert output.tokens == tokens[: tokens.index(stop) + 1]
    assert output.reason is FinishReason.STOP


def test_a_seeded_request_gives_the_same_tokens_alone_and_in_a_batch(loop):
    params = SamplingParams(max_tokens=8, temperature=1.0, seed=7, top_k=20, top_p=0.9)
    prompt = random_prompt(9)
    alone = loop.generate(prompt, params)
    outputs = [loop.submit(10, prompt, params=params)]
    outputs += [loop.submit(11 + i, random_prompt(4 + i, seed=i), params=params) for i in range(7)]
    loop.run()
    assert outputs[0].tokens == alone


@pytest.mark.parametrize("num_emitted", [1, 5, 11])
def test_a_replay_goes_on_where_the_first_attempt_ended(loop, num_emitted):
    params = SamplingParams(max_tokens=12, temperature=0.8, seed=3, ignore_eos=True)
    prompt = random_prompt(10)
    first = loop.generate(prompt, params)
    output = loop.submit(99, prompt, params=params, emitted=first[:num_emitted])
    output.tokens += first[:num_emitted]
    loop.run()
    assert output.tokens == first


def test_a_replay_of_an_ended_request_ends_at_once(loop):
    params = SamplingParams(max_tokens=2)
    full = loop.submit(1, [5, 6], params=params, emitted=[7, 8])
    stopped = loop.submit(2, [5, 6], params=params, emitted=[EOS])
    loop.run()
    assert (full.reason, full.tokens) == (FinishReason.LENGTH, [])
    assert (stopped.reason, stopped.tokens) == (FinishReason.STOP, [])
    loop.check_all_pages_free()


def test_max_tokens_ends_at_the_context(loop):
    params = SamplingParams(max_tokens=1000, ignore_eos=True)
    output = loop.submit(1, random_prompt(loop.context_length - 5), params=params)
    loop.run()
    assert (len(output.tokens), output.reason) == (5, FinishReason.LENGTH)
    loop.check_all_pages_free()


def test_all_requests_finish_in_one_round_and_then_a_new_one_comes(loop):
    first = [loop.submit(i, random_prompt(4, seed=i), params=SamplingParams(max_tokens=3)) for i in range(3)]
    loop.run()
    assert all(output.finish is not None for output in first)
    assert loop.generate(random_prompt(4, seed=0), SamplingParams(max_tokens=3)) == first[0].tokens


def test_a_request_past_the_credits_goes_back(loop):
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    outputs = [loop.submit(i, random_prompt(4), params=params) for i in range(9)]
    loop.run()
    assert [output.returned is not None for output in outputs] == [False] * 8 + [True]
    assert outputs[8].returned.reason is ReturnReason.NO_CREDIT
    loop.check_all_pages_free()


def test_credits_come_back_with_a_requests_end(loop):
    loop.turn()
    before = loop.emissions[-1].streams[STREAM].credits
    output = loop.submit(1, random_prompt(4), params=SamplingParams(max_tokens=4))
    loop.turn()
    during = loop.emissions[-1].streams[STREAM].credits
    loop.run()
    after = loop.emissions[-1].streams[STREAM].credits
    assert output.finish is not None
    assert during == before
    assert after.slots == before.slots + 1
    assert after.pages > before.pages


def test_a_cancel_between_two_steps_is_in_the_load(loop):
    def load():
        return next(emission.load for emission in reversed(loop.emissions) if emission.load is not None)

    loop.turn()
    idle = load()
    loop.submit(1, random_prompt(4))
    loop.turn()
    assert load().running_requests == 1
    assert load().free_pages < idle.free_pages
    loop.put(Cancelled(STREAM, [1]))
    loop.turn()
    assert (load().running_requests, load().free_pages) == (0, idle.free_pages)
    assert loop.emissions[-1].streams[STREAM].load == load()
    assert loop.metric("vllm:num_requests_running") == 0
    assert loop.metric("paceline_target_free_pages") == idle.free_pages


def test_a_duplicate_number_ends_both_requests_with_an_error(loop):
    output = loop.submit(1, random_prompt(4))
    loop.turn()
    again = loop.submit(1, random_prompt(4))
    again.tokens += output.tokens
    loop.run()
    assert again.reason is FinishReason.ERROR
    loop.check_all_pages_free()


def test_the_end_of_a_stream_cancels_its_requests_alone(loop):
    loop.put(StreamOpened(2))
    gone = loop.submit(1, random_prompt(4), params=SamplingParams(max_tokens=30, ignore_eos=True), stream=2)
    stays = loop.submit(1, random_prompt(4), params=SamplingParams(max_tokens=30, ignore_eos=True))
    for _ in range(5):
        loop.turn()
    loop.put(StreamClosed(2))
    loop.run()
    assert (gone.finish, len(stays.tokens)) == (None, 30)
    loop.check_all_pages_free()


def test_five_hundred_requests_with_random_cancels_return_all_pages(loop):
    rng = np.random.default_rng(0)
    outputs = {}
    for number in range(500):
        params = SamplingParams(max_tokens=int(rng.integers(1, 6)), ignore_eos=True)
        outputs[number] = loop.submit(number, random_prompt(int(rng.integers(1, 30)), seed=number), params=params)
        if rng.random() < 0.5:
            loop.turn()
        if rng.random() < 0.4:
            loop.put(Cancelled(STREAM, [int(rng.integers(max(0, number - 8), number + 1))]))
    loop.run()
    loop.check_all_pages_free()
    ends = [(output.finish is not None) + (output.returned is not None) for output in outputs.values()]
    assert ends == [1] * 500
    reasons = {output.reason for output in outputs.values()}
    assert {FinishReason.CANCELLED, FinishReason.LENGTH} <= reasons


def test_more_requests_than_rows_take_turns(make_loop):
    loop = make_loop(max_rows_per_step=16, max_running_requests=8)
    prompts = [random_prompt(3, seed=i) for i in range(8)]
    alone = [loop.generate(prompt) for prompt in prompts]
    outputs = [loop.submit(100 + i, prompt) for i, prompt in enumerate(prompts)]
    loop.put(PolicySet(STREAM, max_rows=3))
    loop.run()
    assert [output.tokens for output in outputs] == alone
