"""The step times of the warm-up, beside what else starts on the same cores."""

from __future__ import annotations

import itertools
import time

import pytest

from engine.pages import PageAllocator
from target_service.loading import LoadedRank
from target_service.step_runner import StepRunner
from target_service.warm_up import warm_up

_SLOW_STEPS, _SLOW_S = 12, 0.03  # far more than a tiny step takes


@pytest.fixture
def runner(tiny_rank: LoadedRank) -> StepRunner:
    return StepRunner(tiny_rank.model, tiny_rank.cache, ops=tiny_rank.ops, tp=tiny_rank.tp)


def test_what_runs_beside_for_a_while_makes_no_size_slow(
    runner: StepRunner, tiny_rank: LoadedRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, steps = runner.run, []

    def run_beside(*step):
        steps.append(step)
        if len(steps) <= _SLOW_STEPS:
            time.sleep(_SLOW_S)
        return run(*step)

    monkeypatch.setattr(runner, "run", run_beside)
    allocator = PageAllocator(tiny_rank.cache.num_pages, 4)
    times = warm_up(runner, allocator, max_rows=64)

    assert [rows for rows, _ in times.warm_up] == [1, 2, 4, 6, 8, 16, 32, 48, 64]
    assert max(ms for _, ms in times.warm_up) < 1e3 * _SLOW_S
    assert allocator.num_free == allocator.num_pages


def test_one_step_that_takes_long_by_chance_ends_nothing(
    runner: StepRunner, tiny_rank: LoadedRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, numbers = runner.run, itertools.count()

    def run_late(*step):
        time.sleep(0.1 if next(numbers) == 3 else 0.0)
        return run(*step)

    monkeypatch.setattr(runner, "run", run_late)
    times = warm_up(runner, PageAllocator(tiny_rank.cache.num_pages, 4), max_rows=64)

    assert [rows for rows, _ in times.warm_up] == [1, 2, 4, 6, 8, 16, 32, 48, 64]


def test_no_size_is_tried_past_one_that_takes_long(
    runner: StepRunner, tiny_rank: LoadedRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runner.run

    def run_slowly(plan, sampling):
        time.sleep(0.1 if plan.num_rows > 4 else 0.0)
        return run(plan, sampling)

    monkeypatch.setattr(runner, "run", run_slowly)
    times = warm_up(runner, PageAllocator(tiny_rank.cache.num_pages, 4), max_rows=64)

    assert [rows for rows, _ in times.warm_up] == [1, 2, 4, 6]
    assert times.at_warm_up(6) > 75
