"""A KV pool that is full: requests past it go back to their router, and it serves on."""

from __future__ import annotations

from paceline.types import SamplingParams
from target_service.emission import ReturnReason
from tests.support.tiny_target import DrivenLoop, TinyTarget, load_tiny_rank, random_prompt

POOL = {"max_total_tokens": 256}  # 64 pages of 4 tokens
PARAMS = SamplingParams(max_tokens=4, ignore_eos=True)  # a prompt of 4, and scratch for 64 nodes: 18 pages


def test_requests_past_the_pages_go_back_and_the_others_finish(tiny_target: TinyTarget) -> None:
    loop = DrivenLoop(tiny_target.config(**POOL), load_tiny_rank(tiny_target, **POOL))
    for start in (1, 11, 21):
        outputs = [loop.submit(start + i, random_prompt(4, seed=i), params=PARAMS) for i in range(8)]
        loop.run()
        assert [output.finish is not None for output in outputs] == [True] * 3 + [False] * 5
        assert all(output.returned.reason is ReturnReason.NO_CREDIT for output in outputs[3:])
        assert all(len(output.tokens) == 4 for output in outputs[:3])
        loop.check_all_pages_free()
