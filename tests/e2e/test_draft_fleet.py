"""Several drafts on real services: sessions spread, and move where a draft drains or dies, and the tokens stay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from client.client import Generation, PacelineClient
from client.launcher import Fleet
from client.launcher_config import FleetConfig
from client.request import GenerateOptions, Message, Sampling
from tests.support.services import PATIENT, TREE, WAIT_S, ask, wait_until

pytestmark = pytest.mark.slow

LONG = Sampling(max_tokens=48, ignore_eos=True)


@pytest.fixture
def pair() -> Iterator[tuple[Fleet, PacelineClient]]:
    """Two drafts, one target."""
    fleet = Fleet(FleetConfig(num_drafts=2, dtype="float32", target_flags=PATIENT))
    with fleet, PacelineClient(fleet.router_address, request_timeout_s=WAIT_S) as client:
        yield fleet, client


def sessions(client: PacelineClient) -> list[int]:
    """Requests that name each draft."""
    return [state.running_requests for state in client.info().drafts]


def read(generation: Generation, num_tokens: int) -> None:
    seen = 0
    while seen < num_tokens:
        seen += len(next(generation).token_ids)


def begin_spread(client: PacelineClient, prompts: list[str], stack: ExitStack) -> list[Generation]:
    """Streams on different drafts, with their first tokens; the stack cancels them.

    They may need another try: a draft that has just come is not linked yet, one that has just worked counts as busy.
    """
    options = GenerateOptions(speculation=TREE)
    generations: list[Generation] = []

    def is_spread() -> bool:
        with ExitStack() as attempt:
            generations[:] = [
                attempt.enter_context(client.generate([Message("user", prompt)], sampling=LONG, options=options))
                for prompt in prompts
            ]
            for generation in generations:
                read(generation, 4)
            if sessions(client) != [1, 1]:
                return False
            stack.push(attempt.pop_all())
            return True

    wait_until(is_spread, "two requests on different drafts")
    return generations


def test_sessions_spread_and_those_of_a_draft_that_goes_speculate_on_another(
    pair: tuple[Fleet, PacelineClient], prompts: list[str]
) -> None:
    fleet, client = pair
    expected = [ask(client, prompt, LONG, False).token_ids for prompt in prompts[:2]]
    for end in ("terminate", "kill"):
        with ExitStack() as stack:
            generations = begin_spread(client, prompts[:2], stack)
            getattr(fleet.drafts[0], end)()
            completions = [generation.result() for generation in generations]
        assert [completion.token_ids for completion in completions] == expected
        late = [completion.stats.rounds - completion.stats.speculative_rounds for completion in completions]
        assert max(late) <= 5, late
        fleet.drafts[0].kill()
        fleet.drafts[0].restart(timeout_s=WAIT_S)
        wait_until(lambda: all(state.ready for state in client.info().drafts), "the restarted draft")
