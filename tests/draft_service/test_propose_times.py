"""What proposals take is measured of all kinds in turn: what others do meanwhile makes none of them alone look slow."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from draft_service.config import DraftConfig
from draft_service.propose_times import measure_proposals
from engine.drafter import ExtendItem
from engine.pages import PageAllocator
from paceline.types import TreeShape

SHAPES = (TreeShape(3, 1, 4), TreeShape(5, 4, 16))


class Timed:
    """A drafter whose rounds take a clock's time, twice as long where others are at work."""

    def __init__(self, busy_ms: tuple[float, float]) -> None:
        """busy_ms: from when to when they are."""
        self.now_ms = 0.0
        self._busy_ms = busy_ms

    def extend(self, items: Sequence[ExtendItem]) -> None:
        propose = items[0].propose
        assert propose is not None
        is_busy = self._busy_ms[0] <= self.now_ms < self._busy_ms[1]
        self.now_ms += ms(propose.num_steps, len(items)) * (2.0 if is_busy else 1.0)


def ms(num_steps: int, num_sessions: int) -> float:
    return 0.1 * num_steps + 0.02 * num_sessions


@pytest.mark.parametrize("busy_ms", [(0.0, 20.0), (15.0, 60.0)])
def test_what_others_do_for_a_while_makes_no_kind_slow(
    busy_ms: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter, allocator = Timed(busy_ms), PageAllocator(2048, 16)
    monkeypatch.setattr("time.perf_counter", lambda: drafter.now_ms / 1e3)
    config = DraftConfig(cuda_graph_shapes="3,1,4;5,4,16", max_running_requests=256)
    times = measure_proposals(drafter, allocator, config, feature_size=8)
    assert [(time.shape, time.num_sessions) for time in times] == [
        (shape, count) for shape in SHAPES for count in (1, 4, 16, 64, 256)
    ]
    assert all(time.ms == pytest.approx(ms(time.shape.num_steps, time.num_sessions)) for time in times)
    allocator.check()
    assert allocator.num_free == 2048


def test_sizes_past_one_that_takes_long_are_left_out_and_long_ones_are_not_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drafter, allocator = Timed((0.0, 0.0)), PageAllocator(2048, 16)
    drafter.extend = lambda items: setattr(drafter, "now_ms", drafter.now_ms + 300.0)  # type: ignore[method-assign]
    monkeypatch.setattr("time.perf_counter", lambda: drafter.now_ms / 1e3)
    config = DraftConfig(cuda_graph_shapes="3,1,4;5,4,16", max_running_requests=256)
    times = measure_proposals(drafter, allocator, config, feature_size=8)
    assert [time.num_sessions for time in times] == [1, 1]
    assert drafter.now_ms <= 8 * 300.0 + 1000.0
