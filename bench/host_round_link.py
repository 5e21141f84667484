"""The router's end of ``bench.host_round``: submits requests that all speculate, and times the steps' messages."""

from __future__ import annotations

import time

from bench.host_draft_model import PAGE_SIZE, SHAPE, VOCAB
from paceline.codec import encode_decision
from paceline.rpc import open_channel
from paceline.types import Rung, SpeculationDecision
from paceline.v1 import common_pb2, target_pb2, target_pb2_grpc

PROMPT_LEN, MAX_TOKENS, CONTEXT = 110, 6000, 8192
FEATURES = "bench"  # the feature_id of both services

_WARM_ROUNDS = 100


def target_info() -> common_pb2.ServiceInfo:
    """As much of it as the streams need."""
    return common_pb2.ServiceInfo(
        incarnation=1, feature_id=FEATURES, vocab_size=VOCAB, context_length=CONTEXT, page_size=PAGE_SIZE
    )


async def measure(target: int, draft: int, *, batch: int, rounds: int) -> list[float]:
    """Seconds of each of the rounds. target, draft: ports."""
    decision = encode_decision(SpeculationDecision(f"127.0.0.1:{draft}", (Rung(0, SHAPE),)))
    async with open_channel(f"127.0.0.1:{target}") as channel:
        stream = target_pb2_grpc.TargetServiceStub(channel).Serve()
        await stream.write(target_pb2.ServeRequest(hello=target_pb2.ServeHello(router="bench", incarnation=1)))
        submissions = [
            target_pb2.Submission(
                request=number,
                request_id=str(number),
                prompt_ids=[5] * PROMPT_LEN,
                sampling_params=common_pb2.SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True),
                decision=decision,
            )
            for number in range(batch)
        ]
        await stream.write(target_pb2.ServeRequest(submit=target_pb2.Submit(submissions=submissions)))
        came_s: list[float] = []
        drafted = 0
        while len(came_s) < _WARM_ROUNDS + rounds:
            response = await stream.read()
            assert isinstance(response, target_pb2.ServeResponse), "the target ended the stream"
            drafted += response.load.drafted_requests
            if drafted >= batch:
                drafted -= batch
                came_s.append(time.perf_counter())
        stream.cancel()
    return [stop - start for start, stop in zip(came_s[_WARM_ROUNDS:], came_s[_WARM_ROUNDS + 1 :], strict=False)]
