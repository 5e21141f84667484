"""Services on GPUs: the CPU's tokens in fp32, also over two GPUs; and nothing is left behind by many requests."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from bench.inflate import InflateConfig, inflate
from client.client import PacelineClient
from client.completion import Completion
from client.launcher import Fleet
from client.launcher_config import FleetConfig
from client.placement import DeviceFlags
from client.request import GenerateOptions, Sampling, Speculation
from paceline.types import TreeShape
from tests.support.services import CHAIN, PATIENT, TREE, WAIT_S, Oracle, ask, free_pages, wait_until

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

NUM_PROMPTS, NUM_TOKENS = 20, 32
NUM_BURST, NUM_CLIENTS, BURST_THREADS = 20_000, 4, 32
MOST_GROWTH = 0.25  # of a service's memory over the second half of a burst
GREEDY = Sampling(max_tokens=NUM_TOKENS)
SHAPES: tuple[Speculation, ...] = (None, False, CHAIN, TREE, TreeShape(2, 3, 5))


@pytest.fixture(scope="module")
def inflated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default pair with heads that two ranks can share out."""
    out = tmp_path_factory.mktemp("inflated")
    inflate(
        InflateConfig(
            out=str(out),
            shape="custom",
            layers=32,
            hidden_size=1024,
            num_heads=16,
            num_kv_heads=4,
            head_dim=64,
            intermediate_size=2048,
            dtype="float32",
        )
    )
    return out


@pytest.fixture
def one_gpu() -> Iterator[tuple[Fleet, PacelineClient]]:
    devices = DeviceFlags(target_devices=("cuda:0",), draft_devices=("cuda:0",))
    fleet = Fleet(FleetConfig(dtype="float32", devices=devices, target_flags=PATIENT))
    with fleet, PacelineClient(fleet.router_address, request_timeout_s=WAIT_S) as client:
        yield fleet, client


def test_in_fp32_a_gpu_gives_the_cpus_tokens(
    one_gpu: tuple[Fleet, PacelineClient], oracle: Oracle, prompts: list[str]
) -> None:
    _, client = one_gpu
    for prompt in prompts[:NUM_PROMPTS]:
        plain = ask(client, prompt, GREEDY, False)
        assert plain.token_ids == oracle.greedy(plain.prompt_ids, NUM_TOKENS), prompt
        for shape in (CHAIN, TREE):
            assert ask(client, prompt, GREEDY, shape).token_ids == plain.token_ids, (prompt, shape)


@needs_two
def test_two_ranks_or_a_draft_on_its_own_gpu_give_the_tokens_of_one_gpu(inflated: Path, prompts: list[str]) -> None:
    def answers(tp_size: int, draft_device: str) -> list[Completion]:
        devices = DeviceFlags(target_devices=("cuda:0",), draft_devices=(draft_device,))
        fleet = Fleet(
            FleetConfig(
                dtype="float32",
                tp_size=tp_size,
                devices=devices,
                model_path=str(inflated / "target"),
                head_path=str(inflated / "head"),
                target_flags=PATIENT,
            )
        )
        with fleet, PacelineClient(fleet.router_address, request_timeout_s=WAIT_S) as client:
            return [ask(client, prompt, GREEDY, shape) for prompt in prompts[:8] for shape in (False, TREE)]

    one = answers(1, "cuda:0")
    for tp_size, draft_device in ((1, "cuda:1"), (2, "cuda:1")):
        others = answers(tp_size, draft_device)
        assert [other.token_ids for other in others] == [answer.token_ids for answer in one]
        assert sum(other.stats.speculative_rounds for other in others) > 0


def test_a_burst_of_mixed_requests_leaves_no_page_and_no_memory(prompts: list[str]) -> None:
    devices = DeviceFlags(target_devices=("cuda:0",), draft_devices=("cuda:0",))
    with Fleet(FleetConfig(devices=devices)) as fleet:
        start_pages = free_pages(fleet)
        run_burst(fleet, prompts, range(NUM_BURST // 2))
        halfway = memory(fleet)
        run_burst(fleet, prompts, range(NUM_BURST // 2, NUM_BURST))
        wait_until(lambda: free_pages(fleet) == start_pages, f"{free_pages(fleet)} pages are {start_pages} again")
        print(f"bytes halfway {halfway}, at the end {memory(fleet)}")
        for before, after in zip(halfway, memory(fleet), strict=True):
            assert after <= (1 + MOST_GROWTH) * before


def memory(fleet: Fleet) -> list[int]:
    """Bytes of each service's processes on the host."""
    return [process.usage().rss_bytes for process in fleet.processes]


def run_burst(fleet: Fleet, prompts: list[str], numbers: range) -> None:
    """Every eighth request is cancelled after its first token."""
    clients = [PacelineClient(fleet.router_address, request_timeout_s=WAIT_S) for _ in range(NUM_CLIENTS)]

    def run(number: int) -> None:
        chance = random.Random(number)
        sampling = Sampling(
            max_tokens=chance.randint(1, 24),
            temperature=chance.choice((0.0, 0.7, 1.0)),
            top_p=chance.choice((1.0, 0.9)),
            top_k=chance.choice((0, 20)),
            seed=number,
        )
        options = GenerateOptions(speculation=chance.choice(SHAPES))
        client = clients[number % NUM_CLIENTS]
        with client.generate(chance.choice(prompts), sampling=sampling, options=options) as generation:
            if number % 8 == 0:
                next(generation)
            else:
                assert len(generation.result().token_ids) >= 1

    with ThreadPoolExecutor(NUM_CLIENTS * BURST_THREADS) as pool:
        list(pool.map(run, numbers))
    for client in clients:
        client.close()
