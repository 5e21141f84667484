"""Few rows and sessions are laid out in lists, and many in arrays: the same numbers of the same types."""

import dataclasses

import numpy as np
import pytest
import torch

from engine.extend_batch import ExtendBatch, Noise
from engine.growers import Growers
from engine.row_batch import first_pages, split_rows

PAGE_SIZE = 4


def batch_of(counts, rng):
    num_sessions = len(counts)
    base_len = rng.integers(0, 30, num_sessions)
    return ExtendBatch(
        page_ids=rng.permutation(20 * num_sessions).reshape(num_sessions, 20).astype(np.int32),
        page_size=PAGE_SIZE,
        capacity=np.full(num_sessions, 80),
        base_len=base_len,
        num_rows=np.array(counts),
        tokens=rng.integers(0, 90, sum(counts)).astype(np.int32),
        features=(torch.zeros(sum(counts), 3),),
        shapes=np.array([[3, 2, 6, 0]] * num_sessions).T,
        noise=Noise(np.zeros(num_sessions, np.uint64), np.zeros(num_sessions)),
    )


def assert_same(one, other):
    for field in dataclasses.fields(one):
        ours, theirs = getattr(one, field.name), getattr(other, field.name)
        if dataclasses.is_dataclass(ours):
            assert_same(ours, theirs)
        elif isinstance(ours, np.ndarray):
            assert ours.dtype == theirs.dtype, field.name
            np.testing.assert_array_equal(ours, theirs, err_msg=field.name)


@pytest.mark.parametrize("counts", [(1,), (5,), (2, 1), (1, 3, 2, 2)])
def test_few_rows_are_laid_out_as_many_are(monkeypatch, counts):
    batch = batch_of(counts, np.random.default_rng(len(counts)))
    (few,) = split_rows(batch, 64)
    num_tokens = batch.base_len + batch.num_rows
    pages = first_pages(batch.page_ids, num_tokens, PAGE_SIZE)
    monkeypatch.setattr("engine.row_batch._FEW_ROWS", 0)
    monkeypatch.setattr("engine.row_batch._FEW_SESSIONS", 0)
    (many,) = split_rows(batch, 64)
    assert_same(few, many)
    for ours, theirs in zip(pages, first_pages(batch.page_ids, num_tokens, PAGE_SIZE), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_one_sessions_scratch_lies_where_it_lies_beside_others():
    batch = batch_of((2, 3), np.random.default_rng(7))
    growers = Growers(
        places=np.arange(2),
        roots=batch.tokens[[1, 4]],
        committed_len=batch.base_len + batch.num_rows,
        shapes=batch.shapes,
        noise=batch.noise,
        page_ids=batch.page_ids,
        page_size=PAGE_SIZE,
    )
    slots = growers.scratch_slots(9)
    for place in range(2):
        alone = growers.take(slice(place, place + 1)).scratch_slots(9)
        assert alone.dtype == slots.dtype
        np.testing.assert_array_equal(alone[:, 0], slots[:, place])
