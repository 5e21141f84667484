"""Deadlines, tenants, rates and a full queue, on real services: one target with one slot."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from client.client import Generation, PacelineClient
from client.launcher import Fleet
from client.launcher_config import FleetConfig
from client.request import GenerateOptions, Sampling
from paceline.errors import CapacityError, DeadlineError
from tests.support.services import WAIT_S, wait_until

pytestmark = pytest.mark.slow

SHORT = Sampling(max_tokens=4, ignore_eos=True)
LONG = Sampling(max_tokens=400, ignore_eos=True)
PROMPT = [500, 501, 502, 503]
QUEUE = 8
RATE = 12


@pytest.fixture(scope="module")
def client() -> Iterator[PacelineClient]:
    rate = ("--tenant-rate-limit", str(RATE), "--tenant-rate-period-s", "5", "--tenant-rate-wait-s", "0.1")
    config = FleetConfig(
        num_drafts=0,
        router_flags=("--max-queued-requests", str(QUEUE), *rate),
        target_flags=("--max-running-requests", "1"),
    )
    with Fleet(config) as fleet, PacelineClient(fleet.router_address, request_timeout_s=WAIT_S) as client:
        yield client


@pytest.fixture
def busy(client: PacelineClient) -> Iterator[Generation]:
    """Holds the only slot."""
    with client.generate(PROMPT, sampling=LONG, options=GenerateOptions(tenant="busy")) as generation:
        next(generation)
        yield generation


def ask(client: PacelineClient, tenant: str, sampling: Sampling = SHORT, **options: float) -> Generation:
    return client.generate(PROMPT, sampling=sampling, options=GenerateOptions(tenant=tenant, **options))


def wait_for_queue(client: PacelineClient, num_requests: int) -> None:
    wait_until(lambda: client.info().queued_requests == num_requests, f"{num_requests} requests wait")


def test_a_deadline_ends_a_request_that_waits_and_one_that_runs(client: PacelineClient, busy: Generation) -> None:
    with pytest.raises(DeadlineError, match="while it waited in the queue"):
        ask(client, "late", deadline_s=0.3).result()
    busy.cancel()
    with pytest.raises(DeadlineError, match=r"passed after \d+ tokens|ask for fewer tokens"):
        ask(client, "late", LONG, deadline_s=0.5).result()


def test_a_request_that_cannot_be_done_in_time_is_refused_at_once(client: PacelineClient) -> None:
    ask(client, "first", Sampling(max_tokens=20, ignore_eos=True)).result()
    with pytest.raises(DeadlineError, match="ask for fewer tokens"):
        ask(client, "second", LONG, deadline_s=1.0).result()
    assert len(ask(client, "second", deadline_s=30.0).result().token_ids) == SHORT.max_tokens


def test_two_tenants_share_the_slot_however_many_requests_one_sends(client: PacelineClient, busy: Generation) -> None:
    order: list[str] = []

    def finish(tenant: str, generation: Generation) -> None:
        generation.result()
        order.append(tenant)

    with ThreadPoolExecutor(QUEUE) as pool:
        for index, tenant in enumerate(("many",) * 5 + ("few",) * 2):
            pool.submit(finish, tenant, ask(client, tenant))
            wait_for_queue(client, index + 1)
        busy.cancel()
    assert order.index("few") <= 2
    assert order[:5].count("few") == 2


def test_a_full_queue_refuses_with_a_hint(client: PacelineClient, busy: Generation) -> None:
    waiting = [ask(client, "full") for _ in range(QUEUE)]
    wait_for_queue(client, QUEUE)
    with pytest.raises(CapacityError, match="queue is full") as caught:
        ask(client, "full").result()
    assert caught.value.retry_after_s is not None
    assert 0.1 <= caught.value.retry_after_s <= 60
    for generation in waiting:
        generation.cancel()


def test_a_tenant_above_its_rate_is_refused_with_a_hint_and_another_is_not(client: PacelineClient) -> None:
    generations = [ask(client, "eager", Sampling(max_tokens=1)) for _ in range(RATE + 1)]
    refused = 0
    for generation in generations:
        try:
            generation.result()
        except CapacityError as error:
            refused += "may start" in str(error) and error.retry_after_s == 5.0
    assert refused >= 1
    ask(client, "modest").result()
