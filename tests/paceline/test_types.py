"""Values of a request are refused where they enter, with the field, the value and the range."""

from __future__ import annotations

import math

import pytest

from paceline.errors import InvalidInputError
from paceline.types import Rung, SamplingParams, SpeculationDecision, TreeShape


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("max_tokens", 0, "max_tokens is 0; it must be at least 1"),
        ("max_tokens", -3, "max_tokens is -3"),
        ("temperature", -0.1, "temperature is -0.1; it must be a finite number, 0"),
        ("temperature", math.nan, "temperature is nan"),
        ("temperature", math.inf, "temperature is inf"),
        ("top_k", -1, "top_k is -1; it must be 0"),
        ("top_p", 0.0, "top_p is 0.0; it must be above 0 and at most 1"),
        ("top_p", 1.01, "top_p is 1.01"),
        ("top_p", math.nan, "top_p is nan"),
        ("min_p", -0.5, "min_p is -0.5; it must be 0 to 1"),
        ("min_p", math.nan, "min_p is nan"),
        ("seed", -1, "seed is -1"),
        ("seed", 2**64, "seed is 18446744073709551616"),
        ("stop_token_ids", (1, -1), "stop_token_ids"),
        ("stop_token_ids", tuple(range(65)), "stop_token_ids is 65; it must be at most 64 ids"),
    ],
)
def test_a_sampling_value_out_of_range_is_named(field, value, words):
    with pytest.raises(InvalidInputError) as refusal:
        SamplingParams(**{field: value})
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    "values",
    [{"top_p": 1.0}, {"top_p": 1e-6}, {"min_p": 1.0}, {"seed": 2**64 - 1}, {"stop_token_ids": tuple(range(64))}],
    ids=str,
)
def test_the_ends_of_the_ranges_are_allowed(values):
    SamplingParams(**values)


@pytest.mark.parametrize("shape", [(1, 1, 2), (5, 1, 6), (5, 4, 16), (9, 8, 64), (17, 4, 64), (63, 1, 64), (1, 63, 64)])
def test_shapes_within_64_nodes_and_64_scratch_nodes_are_allowed(shape):
    assert TreeShape(*shape).num_draft_tokens == shape[2]


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((0, 1, 2), "num_steps is 0"),
        ((65, 1, 60), "num_steps is 65; it must be 1 to 64"),
        ((5, 0, 6), "eagle_topk is 0"),
        ((5, 65, 6), "eagle_topk is 65"),
        ((5, 4, 65), "num_draft_tokens is 65; it must be 2 to 64"),
        ((5, 4, 1), "num_draft_tokens is 1"),
        ((18, 4, 64), "(num_steps - 1) * eagle_topk is 68; it must be at most 64"),
        ((5, 1, 7), "num_draft_tokens is 7; it must be at most 6"),
        ((1, 4, 6), "num_draft_tokens is 6; it must be at most 5"),
    ],
)
def test_a_shape_out_of_range_is_named(shape, words):
    with pytest.raises(InvalidInputError) as refusal:
        TreeShape(*shape)
    assert words in str(refusal.value)


@pytest.mark.parametrize(("steps", "topk", "most"), [(1, 4, 5), (2, 4, 21), (5, 1, 6)])
def test_the_most_nodes_are_all_candidates_and_the_root(steps, topk, most):
    assert TreeShape.max_nodes(steps, topk) == most


def test_a_shape_is_cut_to_the_levels_that_there_is_room_for():
    shape = TreeShape(5, 4, 40, 10)
    assert shape.within(5) is shape and shape.within(9) is shape
    assert shape.within(2) == TreeShape(2, 4, 21, 10)
    assert shape.within(0) is None and shape.within(-3) is None


def test_a_ladder_gives_the_first_shape_that_holds_at_the_load():
    wide, narrow = TreeShape(5, 4, 16), TreeShape(3, 1, 4)
    decision = SpeculationDecision("draft:1", (Rung(4, wide), Rung(16, narrow)))
    assert [decision.shape_for(n) for n in (1, 4, 5, 16, 17)] == [wide, wide, narrow, narrow, None]


def test_a_rung_without_a_bound_holds_at_any_load():
    shape = TreeShape(5, 4, 16)
    assert SpeculationDecision("draft:1", (Rung(0, shape),)).shape_for(10_000) == shape


def test_without_a_draft_nothing_is_proposed():
    assert SpeculationDecision("", (Rung(0, TreeShape(5, 4, 16)),)).shape_for(1) is None
