"""PagedBatch: an AttentionBatch in FlashInfer's terms, where its rows see what causal rows see. numpy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.ops import AttentionBatch


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """Decode rows, chains and chunks: row i of request r sees all but the last q_len - 1 - i positions of its KV."""

    q_indptr: np.ndarray  # [b + 1] int32
    page_indptr: np.ndarray  # [b + 1] int32, into page_ids
    page_ids: np.ndarray  # [sum of pages] int32, none past a request's KV
    last_page_len: np.ndarray  # [b] int32, in [1, page_size]
    page_size: int

    @classmethod
    def of(cls, batch: AttentionBatch) -> PagedBatch | None:
        """None for a batch that is empty, batch_invariant, or has a tree that branches."""
        q_len = np.diff(batch.q_indptr)
        if batch.batch_invariant or len(q_len) == 0 or not q_len.all() or not _sees_as_causal(batch, q_len):
            return None
        kv_len = batch.prefix_len + batch.local_len
        num_pages = -(-kv_len // batch.page_size)
        page_ids, held = batch.page_ids, np.diff(batch.page_indptr)
        page_indptr = np.append(0, np.cumsum(num_pages)).astype(np.int32)
        if (held > num_pages).any():
            place = np.arange(len(page_ids)) - np.repeat(batch.page_indptr[:-1], held)
            page_ids = page_ids[place < np.repeat(num_pages, held)]
        last_page_len = (kv_len - (num_pages - 1) * batch.page_size).astype(np.int32)
        return cls(batch.q_indptr, page_indptr, page_ids, last_page_len, batch.page_size)


def _sees_as_causal(batch: AttentionBatch, q_len: np.ndarray) -> bool:
    """Whether each row of a tree sees every local index up to its own."""
    of_tree = np.repeat(~batch.is_causal, q_len)
    row = np.arange(len(of_tree)) - np.repeat(batch.q_indptr[:-1], q_len)
    own = (np.repeat(batch.local_len - q_len, q_len) + row)[of_tree]
    whole = np.uint64(2**64 - 1) >> (63 - own).astype(np.uint64)
    return bool((batch.ancestors[of_tree] == whole).all())
