"""Walker: starts a walk by a few launches and one copy each way, over buffers that outlast it."""

from __future__ import annotations

import numpy as np
import torch
import triton
from torch import Tensor

from kernels.ops import PendingWalk, SamplingBatch, TreeBatch, WalkLimits, WalkResult
from kernels.reference.walk import FinishedWalk
from kernels.triton_ops.filters import filter_kernel
from kernels.triton_ops.partials import Partials
from kernels.triton_ops.pending import WalkSlot, words_in
from kernels.triton_ops.sample import draw_kernel, peaks_kernel
from kernels.triton_ops.walk_kernel import MAX_NODES, walk_kernel

_MAX_VOCAB = 2**18  # what the filters' sums of mass have room for
_FILTER_WARPS = 8


class Walker:
    """``Ops.start_walk`` on one device, from one thread, in the current stream.

    Buffers grow by doubling where a walk exceeds them, which waits for the device; ``prepare`` takes them beforehand.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._partials: Partials | None = None
        self._slots: list[WalkSlot] = []
        self._slot_words = (0, 0)
        self._turn = 0
        self._known = WalkSlot(torch.device("cpu"), num_words_in=0, num_words_out=1 + MAX_NODES.value)

    def prepare(self, limits: WalkLimits) -> None:
        """As ``Ops.prepare_walk``. Kernels for bias and bitmasks are compiled when first used."""
        self._partials_for(limits.max_nodes, limits.vocab_size)
        longest = min(limits.max_nodes, MAX_NODES.value) + 1
        self._next_slot(words_in(limits.max_nodes, limits.max_requests), limits.max_requests * longest)
        logits = torch.zeros((1, limits.vocab_size), device=self._device)
        one = np.ones(1, np.int32)
        trees = TreeBatch(np.arange(2, dtype=np.int32), one, one, -one, -one)
        for temperature, top_p in ((0.0, 1.0), (1.0, 1.0), (1.0, 0.5)):
            sampling = SamplingBatch(
                seed=np.ones(1, np.uint64),
                temperature=np.full(1, temperature, np.float32),
                top_k=0 * one,
                top_p=np.full(1, top_p, np.float32),
                min_p=np.zeros(1, np.float32),
            )
            self.start(logits, trees, sampling).result()

    def start(self, logits: Tensor, trees: TreeBatch, sampling: SamplingBatch) -> PendingWalk:
        """As ``Ops.start_walk``. logits may have more rows than there are nodes."""
        num_nodes, num_requests = len(trees.tokens), len(trees.node_indptr) - 1
        if num_requests == 0:
            return FinishedWalk(WalkResult(*(np.zeros(0, np.int32) for _ in range(3))))
        assert logits.dtype == torch.float32 and logits.stride(1) == 1 and len(logits) >= num_nodes
        has_bias = sampling.bias_indptr is not None
        all_greedy = not sampling.temperature.any()
        num_terms = 0 if sampling.bias_token is None else len(sampling.bias_token)
        path_stride = 1 + (1 if num_nodes == num_requests else int(np.diff(trees.node_indptr).max()))
        partials = self._partials_for(num_nodes, logits.shape[1])
        slot = self._next_slot(words_in(num_nodes, num_requests, num_terms), num_requests * path_stride)
        slot.send(trees, None if all_greedy and not has_bias else sampling)

        bitmask = sampling.token_bitmask
        mask, mask_stride = (slot.array, 0) if bitmask is None else (bitmask.to(self._device), bitmask.stride(0))
        step = (logits, logits.stride(0), mask, mask_stride, slot.array, num_requests, num_nodes)
        variant = dict(VOCAB=logits.shape[1], HAS_BIAS=has_bias, HAS_MASK=bitmask is not None)
        self._launch_draws(step, variant, partials, None if all_greedy else sampling)
        walk_kernel[(num_requests,)](
            slot.array,
            num_requests,
            num_nodes,
            partials.peaks,
            partials.peak_ids,
            partials.noisy,
            partials.noisy_ids,
            partials.drawn,
            slot.paths,
            path_stride,
            VOCAB=logits.shape[1],
            PARTS=partials.parts,
            ALL_GREEDY=all_greedy,
            num_warps=1,
        )
        return slot.fetch(trees, path_stride)

    def known(self, trees: TreeBatch, walk: WalkResult) -> PendingWalk:
        """As ``Ops.known_walk``."""
        return self._known.hold(trees, walk)

    def _launch_draws(
        self, step: tuple, variant: dict[str, int], partials: Partials, sampling: SamplingBatch | None
    ) -> None:
        """sampling: None where all are greedy."""
        p = partials
        num_nodes = step[-1]
        parts_grid = (num_nodes, p.num_parts)
        sizes = dict(SUBS=p.subs, PARTS=p.parts, **variant)
        peaks_kernel[parts_grid](*step, p.sub_peaks, p.peaks, p.peak_ids, **sizes, num_warps=4)
        if sampling is None:
            return
        has_top_k = (sampling.top_k > 0) & (sampling.top_k < variant["VOCAB"])
        if not has_top_k.all():
            draw_kernel[parts_grid](
                *step, p.peaks, p.noisy, p.noisy_ids, p.masses, PARTS=p.parts, **variant, num_warps=4
            )
        if (has_top_k | (sampling.top_p < 1)).any():
            filter_kernel[(num_nodes,)](
                *step, p.sub_peaks, p.noisy, p.noisy_ids, p.masses, p.drawn, **sizes, num_warps=_FILTER_WARPS
            )

    def _partials_for(self, num_nodes: int, vocab_size: int) -> Partials:
        held = self._partials
        if held is None or held.vocab_size != vocab_size or held.max_nodes < num_nodes:
            if vocab_size > _MAX_VOCAB:
                raise ValueError(
                    f"the vocabulary has {vocab_size} tokens; sampling on {self._device} takes at most {_MAX_VOCAB}: "
                    "choose the backend reference"
                )
            max_nodes = triton.next_power_of_2(num_nodes)
            held = self._partials = Partials(self._device, max_nodes=max_nodes, vocab_size=vocab_size)
        return held

    def _next_slot(self, num_words_in: int, num_words_out: int) -> WalkSlot:
        """The one that is not the last walk's, once it is free. Both grow together."""
        held_in, held_out = self._slot_words
        if num_words_in > held_in or num_words_out > held_out:
            for slot in self._slots:
                slot.wait()
            held_in = triton.next_power_of_2(max(num_words_in, held_in))
            held_out = triton.next_power_of_2(max(num_words_out, held_out))
            self._slots = [WalkSlot(self._device, num_words_in=held_in, num_words_out=held_out) for _ in range(2)]
            self._slot_words = (held_in, held_out)
        self._turn ^= 1
        slot = self._slots[self._turn]
        slot.wait()
        return slot
