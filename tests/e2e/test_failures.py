"""What dies, stalls or leaves in mid-stream costs speed, never tokens, pages or other requests."""

from __future__ import annotations

import random
import socket
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from client.client import Generation, PacelineClient
from client.launcher import Fleet
from client.launcher_config import FleetConfig
from client.request import GenerateOptions, Message, Sampling
from tests.support.services import PATIENT, TREE, WAIT_S, ask, free_pages, wait_until

pytestmark = pytest.mark.slow

LONG = Sampling(max_tokens=60, ignore_eos=True)


@pytest.fixture
def pair() -> Iterator[tuple[Fleet, PacelineClient]]:
    """Two targets, one draft."""
    fleet = Fleet(FleetConfig(num_targets=2, dtype="float32", stop_grace_s=5.0, target_flags=PATIENT))
    with fleet, PacelineClient(fleet.router_address, request_timeout_s=WAIT_S) as client:
        yield fleet, client


def start(client: PacelineClient, prompt: str, sampling: Sampling = LONG) -> Generation:
    return client.generate([Message("user", prompt)], sampling=sampling, options=GenerateOptions(speculation=TREE))


def read(generation: Generation, num_tokens: int) -> None:
    """Reads until so many tokens have come; they stay in the generation's result."""
    seen = 0
    while seen < num_tokens:
        seen += len(next(generation).token_ids)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_a_draft_killed_in_mid_stream_changes_no_token_and_is_used_again(prompts: list[str]) -> None:
    metrics_port = free_port()
    fleet = Fleet(FleetConfig(dtype="float32", target_flags=(*PATIENT, "--metrics-port", str(metrics_port))))
    with fleet, PacelineClient(fleet.router_address, request_timeout_s=WAIT_S) as client:
        expected = ask(client, prompts[0], LONG, False)
        with start(client, prompts[0]) as generation:
            read(generation, 8)
            fleet.drafts[0].kill()
            completion = generation.result()
        assert completion.token_ids == expected.token_ids
        assert completion.stats.speculative_rounds < completion.stats.rounds

        log = (fleet.log_dir / "target-0.log").read_text()
        losses = [line for line in log.splitlines() if "draft" in line and "lost" in line]
        assert len(losses) == 1, losses
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics") as reply:
            metrics = reply.read().decode()
        counted = f'paceline_target_draft_losses_total{{draft="{fleet.drafts[0].address}",reason="unreachable"}} 1.0'
        assert counted in metrics.splitlines()

        fleet.drafts[0].restart(timeout_s=WAIT_S)

        def speculates() -> bool:
            again = ask(client, prompts[0], LONG, TREE)
            assert again.token_ids == expected.token_ids
            return again.stats.speculative_rounds > 0

        wait_until(speculates, "a restarted draft is used")


def test_streams_of_a_killed_target_finish_on_the_other_with_the_same_tokens(
    pair: tuple[Fleet, PacelineClient], prompts: list[str]
) -> None:
    fleet, client = pair
    expected = [ask(client, prompt, LONG, False).token_ids for prompt in prompts[:4]]
    with ExitStack() as stack:
        generations = [stack.enter_context(start(client, prompt)) for prompt in prompts[:4]]
        for generation in generations:
            read(generation, 4)
        fleet.targets[0].kill()
        assert [generation.result().token_ids for generation in generations] == expected


def test_a_terminated_target_drains_without_a_failed_request(
    pair: tuple[Fleet, PacelineClient], prompts: list[str]
) -> None:
    fleet, client = pair
    expected = [ask(client, prompt, LONG, False).token_ids for prompt in prompts[:4]]
    with ExitStack() as stack:
        generations = [stack.enter_context(start(client, prompt)) for prompt in prompts[:4]]
        for generation in generations:
            read(generation, 2)
        fleet.targets[1].terminate()
        late = stack.enter_context(start(client, prompts[0]))
        assert [generation.result().token_ids for generation in generations] == expected
        assert late.result().token_ids == expected[0]
    wait_until(lambda: not fleet.targets[1].running, "the drained target ends")
    assert fleet.targets[1].exit_code == 0


def test_a_terminated_draft_drains_without_a_failed_request(prompts: list[str]) -> None:
    fleet = Fleet(FleetConfig(dtype="float32", target_flags=PATIENT))
    with fleet, PacelineClient(fleet.router_address, request_timeout_s=WAIT_S) as client:
        expected = ask(client, prompts[0], LONG, False).token_ids
        with start(client, prompts[0]) as generation:
            read(generation, 4)
            fleet.drafts[0].terminate()
            assert generation.result().token_ids == expected
        wait_until(lambda: not fleet.drafts[0].running, "the drained draft ends")
        assert fleet.drafts[0].exit_code == 0


def test_a_terminated_router_finishes_its_streams(prompts: list[str]) -> None:
    fleet = Fleet(FleetConfig(dtype="float32", target_flags=PATIENT))
    with fleet, PacelineClient(fleet.router_address, request_timeout_s=WAIT_S) as client:
        assert fleet.router is not None
        with start(client, prompts[0], Sampling(max_tokens=24, ignore_eos=True)) as generation:
            read(generation, 2)
            fleet.router.terminate()
            assert len(generation.result().token_ids) == 24
        router = fleet.router
        wait_until(lambda: not router.running, "the drained router ends")
        assert router.exit_code == 0


def test_a_client_that_reads_slowly_does_not_slow_the_others(prompts: list[str]) -> None:
    fleet = Fleet(FleetConfig(dtype="bfloat16"))
    with fleet, PacelineClient(fleet.router_address, request_timeout_s=WAIT_S) as client:
        sampling = Sampling(max_tokens=40, ignore_eos=True)
        with start(client, prompts[1], Sampling(max_tokens=200, ignore_eos=True)) as slow:
            read(slow, 1)
            assert len(ask(client, prompts[0], sampling, TREE).token_ids) == 40
            assert len(slow.result().token_ids) == 200


def cancel_at_random(fleet: Fleet, client: PacelineClient, prompts: list[str], num_requests: int) -> None:
    start_pages = free_pages(fleet)
    chance = random.Random(5)
    plans = [(chance.choice(prompts[:20]), chance.randint(0, 12), chance.random() < 0.8) for _ in range(num_requests)]

    def run(plan: tuple[str, int, bool]) -> None:
        prompt, num_tokens, cancel = plan
        with start(client, prompt, Sampling(max_tokens=16, ignore_eos=True)) as generation:
            if cancel:
                read(generation, num_tokens)
            else:
                assert len(generation.result().token_ids) == 16

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(run, plans))
    wait_until(lambda: free_pages(fleet) == start_pages, f"{free_pages(fleet)} pages are {start_pages} again")


def test_cancelled_requests_return_every_page_on_both_sides(prompts: list[str]) -> None:
    fleet = Fleet(FleetConfig())
    with fleet, PacelineClient(fleet.router_address, request_timeout_s=WAIT_S) as client:
        cancel_at_random(fleet, client, prompts, 60)


@pytest.mark.slow
def test_five_hundred_cancelled_requests_return_every_page_on_both_sides(prompts: list[str]) -> None:
    fleet = Fleet(FleetConfig())
    with fleet, PacelineClient(fleet.router_address, request_timeout_s=4 * WAIT_S) as client:
        cancel_at_random(fleet, client, prompts, 500)
