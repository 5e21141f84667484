"""FlashInferAttention: FlashInfer's paged attention (FA2), compiled once and planned step by step."""

from __future__ import annotations

import logging
import time

import numpy as np
import torch
from flashinfer.jit import env
from flashinfer.prefill import BatchPrefillWithPagedKVCacheWrapper
from torch import Tensor

from kernels.flashinfer_ops.paged_batch import PagedBatch

_LOG = logging.getLogger(__name__)
_WORKSPACE_BYTES = 128 << 20  # what FlashInfer's documentation recommends
_DTYPES = (torch.bfloat16, torch.float16)
_HEAD_DIMS = (64, 128, 256)


class FlashInferAttention:
    """Owns the wrapper and its workspace, one plan at a time.

    The kernel of chunks packs the query heads of a KV head into its tiles and splits the KV, so that it serves decode
    rows too: FlashInfer's decode on tensor cores is the same module.
    """

    def __init__(self, device: torch.device) -> None:
        workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._wrapper = BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend="fa2")
        self._compiled: set[tuple[torch.dtype, int]] = set()
        self._copied = torch.cuda.Event()

    @staticmethod
    def fits(dtype: torch.dtype, head_dim: int) -> bool:
        """Whether FlashInfer has a kernel for them."""
        return dtype in _DTYPES and head_dim in _HEAD_DIMS

    def compile(self, dtype: torch.dtype, head_dim: int) -> None:
        """Builds the kernel, or loads it from FlashInfer's cache on disk; a second call does nothing."""
        if (dtype, head_dim) in self._compiled:
            return
        _LOG.info(
            "FlashInfer: building attention for %s, heads of %d, or loading it from %s",
            dtype,
            head_dim,
            env.FLASHINFER_JIT_DIR,
        )
        started = time.perf_counter()
        one = np.array([0, 1], np.int32)
        self._plan(PagedBatch(one, one, one[:1], one[1:], page_size=1), (1, 1, head_dim), dtype)
        self._compiled.add((dtype, head_dim))
        _LOG.info("FlashInfer: attention is ready after %.1f s", time.perf_counter() - started)

    def plan(self, batch: PagedBatch, q: Tensor, k_cache: Tensor) -> None:
        """Of the next runs, which have heads of these shapes and this dtype."""
        self.compile(q.dtype, q.shape[2])
        self._plan(batch, (q.shape[1], k_cache.shape[1], q.shape[2]), q.dtype)

    def run(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, *, page_size: int) -> Tensor:
        """As AttentionPlan.run; the rows are those of the plan."""
        paged = (len(k_cache) // page_size, page_size, *k_cache.shape[1:])
        k_pages, v_pages = (cache[: paged[0] * page_size].view(paged) for cache in (k_cache, v_cache))
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        result: Tensor = self._wrapper.run(q, (k_pages, v_pages), out=out)
        return result

    def _plan(self, batch: PagedBatch, heads: tuple[int, int, int], dtype: torch.dtype) -> None:
        """heads: of q, of KV, and their size. Waits until the last plan has left the wrapper's pinned memory."""
        self._copied.synchronize()
        arrays = (batch.q_indptr, batch.page_indptr, batch.page_ids, batch.last_page_len)
        self._wrapper.plan(
            *(torch.from_numpy(array) for array in arrays),
            *heads,
            batch.page_size,
            causal=True,
            q_data_type=dtype,
            kv_data_type=dtype,
        )
        self._copied.record()
