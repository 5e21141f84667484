"""Each service in turn is told to end under 32 streams: it drains, no call fails and no token changes."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from client.client import PacelineClient
from client.completion import Completion
from client.launcher import Fleet
from client.launcher_config import FleetConfig
from client.process import ServiceProcess
from client.request import GenerateOptions, Message, Sampling
from paceline.types import TreeShape
from tests.support.services import PATIENT, ask

pytestmark = pytest.mark.slow

NUM_STREAMS, NUM_PROMPTS = 32, 8
LIMIT_S = 240.0  # of a phase, on a machine that does other things, too
SAMPLING = Sampling(max_tokens=40, ignore_eos=True)
# Shorter than the streams are, so that drafts end with sessions open and targets hand requests back.
SHORT_DRAIN = ("--drain-timeout-s", "1")


def stream(client: PacelineClient, prompt: str, begun: threading.Barrier) -> Completion:
    """One answer, which stops after its first tokens until all streams have begun."""
    options = GenerateOptions(speculation=TreeShape(2, 3, 5))
    with client.generate([Message("user", prompt)], sampling=SAMPLING, options=options) as generation:
        while not next(generation).token_ids:
            pass
        begun.wait(LIMIT_S)
        return generation.result()


def drain(victim: ServiceProcess, client: PacelineClient, prompts: list[str]) -> list[Future[Completion]]:
    """Ends victim once all streams run; returns them when all have ended and it is gone."""
    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        begun = threading.Barrier(NUM_STREAMS + 1)
        streams = [pool.submit(stream, client, prompts[i % NUM_PROMPTS], begun) for i in range(NUM_STREAMS)]
        begun.wait(LIMIT_S)
        running = sum(state.running_requests for state in client.info().targets)
        victim.terminate()
        told_s = time.monotonic()
        while victim.running:
            assert time.monotonic() - told_s < LIMIT_S, f"{victim.name} does not end"
            time.sleep(0.05)
        took_s = time.monotonic() - told_s
    failed = sum(future.exception() is not None for future in streams)
    print(
        f"{victim.name}: {running} of {NUM_STREAMS} streams ran at SIGTERM, {failed} failed, it ended in {took_s:.1f} s"
    )
    assert running >= NUM_STREAMS / 2
    return streams


def test_each_service_drains_under_32_streams_without_a_failed_call_or_another_token(prompts: list[str]) -> None:
    config = FleetConfig(
        num_targets=2,
        num_drafts=2,
        dtype="float32",
        target_flags=(*PATIENT, *SHORT_DRAIN),
        draft_flags=SHORT_DRAIN,
        router_flags=("--drain-timeout-s", str(LIMIT_S)),
    )
    with Fleet(config) as fleet, PacelineClient(fleet.router_address, request_timeout_s=LIMIT_S) as client:
        asked = prompts[:NUM_PROMPTS]
        expected = [ask(client, prompt, SAMPLING, False).token_ids for prompt in asked]
        assert fleet.router is not None
        for victim in (fleet.drafts[0], fleet.targets[0], fleet.router):
            answers = [future.result() for future in drain(victim, client, asked)]
            assert [answer.token_ids for answer in answers] == [expected[i % NUM_PROMPTS] for i in range(NUM_STREAMS)]
            assert victim.exit_code == 0
            assert all(answer.stats.speculative_rounds for answer in answers)
