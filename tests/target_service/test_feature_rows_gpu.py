"""Feature rows on their way from a GPU: copies that later steps cannot change."""

import numpy as np
import pytest
import torch

from engine.wire import to_raw
from target_service.feature_rows import FeatureRows

pytestmark = pytest.mark.gpu


@pytest.fixture
def pool() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(512, 96, generator=generator).to(torch.bfloat16).cuda()


def test_a_steps_rows_are_those_before_the_next_step_wrote_its_own(pool):
    rows = FeatureRows(pool)
    features = pool[:40].clone()
    wanted = to_raw(features[[3, 0, 39]])
    copied = rows.copy_step(features, 40)
    assert rows.num_copied == 0, "the step is not known yet"
    copied.show()
    features.zero_()
    assert b"".join(rows.of_step([3, 0, 39])) == wanted.data


def test_rows_of_the_pool_are_those_of_the_time_of_the_order(pool):
    rows = FeatureRows(pool)
    slots = [np.array([7, 300, 8]), np.array([511])]
    wanted = [to_raw(pool[torch.from_numpy(part)]) for part in slots]
    rows.start_read(np.concatenate(slots))
    rows.protect_reads()
    pool.zero_()
    assert rows.finish_read(np.array([0, 3, 4])) == wanted


def test_no_more_rows_are_copied_than_there_is_room_for(pool):
    rows = FeatureRows(pool)
    many = pool.repeat(50, 1)
    rows.copy_step(many, len(many)).show()
    assert rows.num_copied == (4 << 20) // (96 * 2)
    (last,) = rows.of_step([rows.num_copied - 1])
    assert last == to_raw(many[rows.num_copied - 1 : rows.num_copied]).data


def test_a_read_waits_for_no_step_that_is_under_way(pool):
    rows = FeatureRows(pool)
    wanted = to_raw(pool[5:6])
    torch.cuda._sleep(2_000_000_000)  # about a second
    rows.start_read(np.array([5]))
    assert rows.finish_read(np.array([0, 1])) == [wanted]
    assert not torch.cuda.current_stream().query(), "the step was over before the read"
