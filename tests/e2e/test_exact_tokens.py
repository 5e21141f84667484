"""Speculation changes no token: against plain decoding, against transformers, greedy and seeded."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from client.client import PacelineClient
from client.launcher import Fleet
from client.request import Sampling
from tests.support.services import CHAIN, TREE, WAIT_S, Oracle, ask

BF16_TIE = 0.125
SAMPLED = Sampling(max_tokens=24, temperature=0.8, top_p=0.95, seed=1234)


def check_greedy(client: PacelineClient, oracle: Oracle, prompts: list[str], max_tokens: int) -> None:
    sampling = Sampling(max_tokens=max_tokens)
    for prompt in prompts:
        plain = ask(client, prompt, sampling, False)
        assert plain.stats.speculative_rounds == 0
        assert plain.token_ids == oracle.greedy(plain.prompt_ids, max_tokens), prompt
        for shape in (CHAIN, TREE):
            drafted = ask(client, prompt, sampling, shape)
            assert drafted.token_ids == plain.token_ids, (prompt, shape)
            assert drafted.text == plain.text
            assert drafted.stats.speculative_rounds > 0


def test_greedy_tokens_equal_transformers_with_and_without_speculation(
    fp32_client: PacelineClient, oracle: Oracle, prompts: list[str]
) -> None:
    check_greedy(fp32_client, oracle, prompts[:8], 32)


@pytest.mark.slow
def test_greedy_tokens_equal_transformers_on_forty_prompts(
    fp32_client: PacelineClient, oracle: Oracle, prompts: list[str]
) -> None:
    check_greedy(fp32_client, oracle, prompts[:40], 64)


def test_a_seeded_request_gives_the_same_tokens_alone_in_a_batch_and_with_any_draft(
    fp32_client: PacelineClient, prompts: list[str]
) -> None:
    alone = ask(fp32_client, prompts[0], SAMPLED, False)
    for shape in (CHAIN, TREE):
        assert ask(fp32_client, prompts[0], SAMPLED, shape).token_ids == alone.token_ids
    with ThreadPoolExecutor(8) as pool:
        others = [pool.submit(ask, fp32_client, prompt, SAMPLED, TREE) for prompt in prompts[1:8]]
        together = pool.submit(ask, fp32_client, prompts[0], SAMPLED, CHAIN)
        assert together.result().token_ids == alone.token_ids
        assert all(other.result().token_ids for other in others)


def test_in_bf16_tokens_differ_only_at_ties(bf16_fleet: Fleet, oracle: Oracle, prompts: list[str]) -> None:
    sampling = Sampling(max_tokens=32)
    with PacelineClient(bf16_fleet.router_address, request_timeout_s=WAIT_S) as client:
        for prompt in prompts[:4]:
            plain = ask(client, prompt, sampling, False)
            for shape in (CHAIN, TREE):
                drafted = ask(client, prompt, sampling, shape)
                gap = fp32_gap_at_first_difference(oracle, plain.prompt_ids, plain.token_ids, drafted.token_ids)
                print(f"{prompt[:40]!r} {shape}: gap {gap}")
                assert gap is None or gap <= BF16_TIE


def fp32_gap_at_first_difference(
    oracle: Oracle, prompt_ids: tuple[int, ...], one: tuple[int, ...], other: tuple[int, ...]
) -> float | None:
    """Between the fp32 logits of the two tokens there; None where the outputs are equal."""
    for i, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            logits = oracle.logits_after([*prompt_ids, *one[:i]])
            return abs(float(logits[a] - logits[b]))
    assert len(one) == len(other), "one output ends where the other goes on"
    return None
