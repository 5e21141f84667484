"""Which batches FlashInfer takes, and in what terms. No FlashInfer is needed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kernels.flashinfer_ops.paged_batch import PagedBatch
from paceline.tree import DraftTree
from tests.support.attention_batches import BRANCHY_TREE, Request, make_batch

CHAIN = DraftTree.chain([3, 1, 4, 1])
SIMPLE = [
    Request(20, 1),
    Request(0, 12),
    Request(7, 4, CHAIN),
    Request(31, 1, DraftTree.single(2)),
    Request(3, 8, q_len=2),
]


def test_decode_rows_chains_and_chunks_are_causal() -> None:
    batch = make_batch(SIMPLE, 8)
    paged = PagedBatch.of(batch)
    assert paged is not None
    assert paged.q_indptr.tolist() == [0, 1, 13, 17, 18, 20]
    assert paged.page_indptr.tolist() == [0, 3, 5, 7, 11, 13]
    assert paged.last_page_len.tolist() == [5, 4, 3, 8, 3]
    assert paged.page_ids.tolist() == batch.page_ids.tolist()


def test_pages_past_the_kv_are_left_out() -> None:
    batch = make_batch(SIMPLE, 8)
    spare = np.insert(batch.page_ids, batch.page_indptr[1:], [90, 91, 92, 93, 94])
    longer = replace(batch, page_ids=spare, page_indptr=batch.page_indptr + np.arange(6, dtype=np.int32))
    paged = PagedBatch.of(longer)
    assert paged is not None
    assert paged.page_ids.tolist() == batch.page_ids.tolist()
    assert paged.page_indptr.tolist() == batch.page_indptr.tolist()


def test_a_chain_that_ends_a_full_mask_is_causal() -> None:
    chain = DraftTree.chain([0] * 64)
    assert PagedBatch.of(make_batch([Request(5, 64, chain), Request(5, 64, chain, q_len=3)], 16)) is not None


def test_what_flashinfer_cannot_see_is_left_to_others() -> None:
    assert PagedBatch.of(make_batch([*SIMPLE, Request(9, 9, BRANCHY_TREE)], 8)) is None
    assert PagedBatch.of(make_batch([Request(9, 9, BRANCHY_TREE, q_len=1)], 8)) is None
    assert PagedBatch.of(make_batch([*SIMPLE, Request(9, 0)], 8)) is None
    assert PagedBatch.of(make_batch([], 8)) is None
    assert PagedBatch.of(make_batch(SIMPLE, 8, batch_invariant=True)) is None
