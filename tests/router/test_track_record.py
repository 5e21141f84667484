"""What choices gave over what was promised of them: where it is believed, how far, and for how long."""

from __future__ import annotations

import numpy as np
import pytest

from router.shape_menu import OFF
from router.track_record import Stretch, TrackRecord


class Promised:
    """A cost model's word for one choice, which may change."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self) -> float:
        return self.value


def ran(record: TrackRecord, gave: float, *, promise: Promised | None = None, times: int = 8, growth: int = 0) -> None:
    """8 requests with trees of 16 nodes."""
    for _ in range(times):
        record.note(Stretch(8.0, growth, True, 16.0, gave, promise or Promised(100.0)))


def factor(
    record: TrackRecord, batch: float = 8.0, growth: int = 0, nodes: float = 16.0, *, joined: bool = True
) -> float:
    return float(record.factors(np.array([batch]), np.array([growth]), np.array([nodes]), joined=joined)[0, 0])


def test_a_choice_that_gave_less_than_promised_is_marked_down_and_others_the_less_the_further() -> None:
    record, fresh = TrackRecord(), TrackRecord()
    ran(record, 80.0)
    assert factor(record) == pytest.approx(0.8, abs=0.03)
    here, more_nodes, other_growth, far = (
        factor(record, **where) / factor(fresh, **where)
        for where in ({}, {"nodes": 32.0}, {"growth": 1}, {"batch": 512.0})
    )
    assert here < more_nodes < other_growth < far == pytest.approx(1.0, abs=0.01)


def test_plain_decoding_is_not_judged_by_trees_nor_the_reverse() -> None:
    record, fresh = TrackRecord(), TrackRecord()
    ran(record, 60.0)
    assert factor(record, growth=OFF, nodes=1.0) == factor(fresh, growth=OFF, nodes=1.0) == 1.0


def test_one_way_to_step_says_little_of_the_other() -> None:
    record, fresh = TrackRecord(), TrackRecord()
    ran(record, 60.0)
    assert factor(record) < factor(record, joined=False) < factor(fresh)


def test_before_anything_ran_trees_are_trusted_up_to_32_requests_and_the_less_the_more_there_are_past_that() -> None:
    record = TrackRecord()
    factors = [factor(record, batch=batch) for batch in (1.0, 8.0, 32.0, 64.0, 256.0)]
    assert factors[:3] == [1.0, 1.0, 1.0] and 0.83 < factors[3] < 0.93 and 0.68 < factors[4] < 0.78


def test_the_hopeful_view_trusts_what_never_ran_and_believes_what_did() -> None:
    record = TrackRecord()
    view = record.hopeful()
    ran(record, 60.0)
    assert factor(view, batch=256.0) == pytest.approx(1.0, abs=0.01)
    assert factor(view) == pytest.approx(0.6, abs=0.05)


def test_one_stretch_is_believed_by_half_and_many_nearly_wholly() -> None:
    once, often = TrackRecord(), TrackRecord()
    ran(once, 120.0, times=1)
    ran(often, 120.0, times=30)
    assert factor(once) < 1.1 < factor(often) < 1.2


def test_what_the_costs_have_learnt_meanwhile_is_not_counted_twice() -> None:
    record, promise = TrackRecord(), Promised(100.0)
    ran(record, 80.0, promise=promise)
    promise.value = 80.0
    record.look(0.0)
    assert factor(record) == pytest.approx(1.0, abs=0.02)


def test_a_promise_that_swings_and_comes_back_leaves_nothing() -> None:
    record, promise = TrackRecord(), Promised(100.0)
    ran(record, 90.0, promise=promise)
    before = factor(record)
    for value in (300.0, 100.0):
        promise.value = value
        record.look(0.0)
    assert factor(record) == pytest.approx(before)


def test_a_machine_that_turned_fast_does_not_hold_it_against_the_ways_that_do_not_run() -> None:
    record, trees, plain = TrackRecord(), Promised(100.0), Promised(80.0)
    ran(record, 95.0, promise=trees)
    as_seen = factor(record)
    for promise in (trees, plain):
        promise.value *= 1.6
    for _ in range(8):
        record.note(Stretch(8.0, OFF, False, 1.0, plain.value, plain))
        record.look(now_s=0.0)
    assert factor(record) == pytest.approx(1.0, abs=0.1), "95 of 160 was not what trees give now"
    trees.value /= 1.6
    record.look(now_s=0.0)
    record.look(now_s=0.0)
    assert factor(record) == pytest.approx(as_seen), "it turned slow again"


def test_one_stretch_since_the_promise_changed_outweighs_many_before_it() -> None:
    record, promise = TrackRecord(), Promised(100.0)
    ran(record, 95.0, promise=promise)
    promise.value = 160.0
    ran(record, 160.0, promise=promise, times=1)
    assert factor(record) > 0.9, "one stretch as promised, beside what is left of eight that gave 0.6 of it"


def test_what_was_seen_long_ago_counts_for_nothing() -> None:
    record, fresh = TrackRecord(), TrackRecord()
    ran(record, 60.0)
    record.look(0.0)
    record.look(3600.0)
    assert factor(record) == pytest.approx(factor(fresh), abs=0.01)


def test_a_record_stays_small() -> None:
    record = TrackRecord()
    for number in range(1000):
        record.note(Stretch(1.0 + number, number % 7, True, 2.0 + number % 31, 90.0, Promised(100.0)))
        record.look(number / 10)
    batches, options = np.geomspace(1, 512, 18), np.arange(100)
    assert record.factors(batches, options % 7, 1.0 + options, joined=True).shape == (18, 100)
    assert len(record._cells) <= 32
