"""How many prompt tokens go into a step beside trees."""

import pytest

from target_service.deadline import StepTimes
from target_service.prompt_share import PromptShare

# As of an H200 at the 8B shape: nearly flat up to 128 rows, steep past it.
GPU = StepTimes([1, 16, 32, 64, 96, 128, 160, 192, 256, 512], [4.6, 4.8, 4.9, 5.3, 5.5, 5.7, 6.1, 6.9, 8.2, 13.0])
CPU = StepTimes([1, 4, 16, 64], [18.0, 23.0, 40.0, 132.0])


@pytest.mark.parametrize(
    ("rows", "num_decoding", "tokens"),
    [
        (64, 32, 64),  # up to 128 rows
        (64, 2, 110),  # a half of those who decode would wait for a step more
        (4, 4, 110),
        (200, 200, 110),  # past the knee two parts cost as much as one
    ],
)
def test_a_prompt_is_cut_where_two_smaller_steps_cost_less(rows: int, num_decoding: int, tokens: int) -> None:
    assert PromptShare(GPU).tokens([110], most=512, rows=rows, num_decoding=num_decoding) == tokens


def test_where_every_row_costs_a_prompt_goes_in_one_part() -> None:
    share = PromptShare(CPU)
    assert share.tokens([50], most=512, rows=6, num_decoding=1) == 50
    assert share.tokens([50, 30], most=512, rows=12, num_decoding=4) == 80


def test_no_more_than_the_step_may_take_and_all_of_it_where_nobody_decodes() -> None:
    share = PromptShare(GPU)
    assert share.tokens([400, 300], most=512, rows=0, num_decoding=0) == 512
    assert share.tokens([30], most=20, rows=64, num_decoding=32) == 20
    assert share.tokens([], most=512, rows=64, num_decoding=32) == 0


def test_a_prompt_that_nearly_fits_is_not_left_with_a_rest_that_delays_it() -> None:
    assert PromptShare(GPU).tokens([70], most=512, rows=64, num_decoding=8) == 70
