"""python -m target_service as a process: exit codes, signals, and the ranks beside rank 0."""

import contextlib
import os
import signal
import time
from pathlib import Path

import psutil
import pytest
import torch

from paceline.config import to_argv
from paceline.types import SamplingParams
from tests.support.target_peer import submission
from tests.support.target_program import Program, router_of
from tests.support.tiny_target import random_prompt
from tests.support.waiting import WAIT_S


@pytest.fixture
def start(tiny_target):
    with contextlib.ExitStack() as stack:

        def starting(*more: str, **changes: object) -> Program:
            program = Program(*to_argv(tiny_target.config(**changes)), *more)
            stack.callback(program.discard)
            return program

        yield starting


def test_an_unknown_model_ends_with_a_message_and_a_code(start):
    code, errors = start("--model-path=/nowhere").end()
    assert "target_service: " in errors
    assert "/nowhere" in errors
    assert "Traceback" not in errors
    assert code == 3


async def test_sigterm_lets_a_running_request_finish(start):
    program = start()
    async with router_of(program.address()) as router:
        await router.submit(submission(1, random_prompt(4), max_tokens=200))
        await router.read()
        program.process.send_signal(signal.SIGTERM)
        (got,) = await router.finish(1)
        assert len(got.tokens) == 200
    code, errors = program.end()
    assert code == 0, errors


async def test_two_ranks_give_the_tokens_of_one_and_the_loss_of_either_ends_both(start, loop):
    prompt = random_prompt(20)
    plain = loop.generate(prompt, SamplingParams(max_tokens=12, ignore_eos=True))
    program = start(tp_size=2)
    async with router_of(program.address()) as router:
        await router.submit(submission(1, prompt, max_tokens=12))
        (got,) = await router.finish(1)
        assert got.tokens == plain
    (worker,) = program.workers()
    os.kill(worker.pid, signal.SIGKILL)
    code, errors = program.end()
    assert code != 0
    assert "rank 1 ended" in errors


@pytest.mark.slow
def test_a_killed_rank_0_leaves_no_orphan(start):
    program = start(tp_size=2)
    program.address()
    workers = program.workers()
    (place,) = [Path(word.partition("file://")[2]) for word in workers[0].cmdline() if "file://" in word]
    assert place.exists()
    program.process.kill()
    program.end()
    _, alive = psutil.wait_procs(workers, timeout=WAIT_S)
    assert not alive
    assert not place.parent.exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_its_process_group_ends_all_ranks_in_order(start, number):
    program = start(tp_size=2)
    program.address()
    workers = program.workers()
    os.killpg(program.process.pid, number)
    code, errors = program.end()
    assert code == 0, errors
    _, alive = psutil.wait_procs(workers, timeout=WAIT_S)
    assert not alive


def plans_left() -> list[Path]:
    """Shared memory of ranks that nobody freed."""
    return list(Path("/dev/shm").glob("paceline-plans-*"))


needs_two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.mark.gpu
@needs_two_gpus
async def test_two_gpus_give_the_tokens_of_one(start):
    found = []
    for flags in ({"device": "cuda:1"}, {"device": "cuda", "tp_size": 2}):
        program = start(**flags, cuda_graph_max_rows=32)
        async with router_of(program.address()) as router:
            for number in range(1, 7):
                await router.submit(submission(number, random_prompt(9 * number, seed=number), max_tokens=40))
            found.append([got.tokens for got in await router.finish(*range(1, 7))])
        program.process.send_signal(signal.SIGTERM)
        code, errors = program.end()
        assert code == 0, errors
    assert found[0] == found[1]


@pytest.mark.gpu
@needs_two_gpus
@pytest.mark.parametrize("lost", [0, 1])
async def test_the_loss_of_a_gpu_rank_in_mid_step_ends_all_within_two_seconds(start, lost):
    program = start(device="cuda", tp_size=2, cuda_graph_max_rows=32)
    async with router_of(program.address()) as router:
        for number in range(1, 5):
            await router.submit(submission(number, random_prompt(4, seed=number), max_tokens=240))
        await router.read()
        processes = [psutil.Process(program.process.pid), *program.workers()]
        processes[lost].kill()
        killed_s = time.monotonic()
        _, alive = psutil.wait_procs(processes[1:], timeout=10)
        assert program.process.wait(10) != 0
        assert time.monotonic() - killed_s < 2
    assert not alive
    assert not plans_left()
