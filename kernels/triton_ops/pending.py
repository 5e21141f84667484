"""One walk's buffers: packed arrays on the way in, paths on the way out, and the event between."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kernels.ops import SamplingBatch, TreeBatch, WalkResult

_LOCAL_BITS = 6
_NOISE_SPAN = 20.0  # kernels.reference.draw: a token this far below the largest is never drawn
_LEAST_MIN_P = 1e-30  # far below exp(-_NOISE_SPAN); keeps the logarithm finite


class WalkSlot:
    """Pinned host arrays and their device twins; reused once ``wait`` has returned."""

    def __init__(self, device: torch.device, *, num_words_in: int, num_words_out: int) -> None:
        """The sizes are in int32 words: see ``words_in``."""
        is_cuda = device.type == "cuda"
        self.array = torch.empty(num_words_in, dtype=torch.int32, device=device)
        self.paths = torch.empty(num_words_out, dtype=torch.int32, device=device)
        self._pinned_in = torch.empty(num_words_in, dtype=torch.int32, pin_memory=is_cuda)
        self._pinned_out = torch.empty(num_words_out, dtype=torch.int32, pin_memory=is_cuda)
        self._host_in = self._pinned_in.numpy()
        self._host_out = self._pinned_out.numpy()
        self._event = torch.cuda.Event() if is_cuda else None

    def send(self, trees: TreeBatch, sampling: SamplingBatch | None) -> None:
        """One copy to the device, in the current stream. sampling: None where all are greedy and nothing is biased."""
        parts = [trees.node_indptr, trees.tokens, trees.first_child, trees.next_sibling]
        if sampling is not None:
            parts += _sampling_parts(trees, sampling)
        end = 0
        for part in parts:
            start, end = end, end + len(part)
            self._host_in[start:end] = part
        self.array[:end].copy_(self._pinned_in[:end], non_blocking=True)

    def fetch(self, trees: TreeBatch, path_stride: int) -> SlotWalk:
        """One copy back, in the current stream, and the event after it."""
        size = (len(trees.node_indptr) - 1) * path_stride
        self._pinned_out[:size].copy_(self.paths[:size], non_blocking=True)
        if self._event is not None:
            self._event.record()
        return SlotWalk(self, trees.node_indptr[:-1], path_stride)

    def hold(self, trees: TreeBatch, walk: WalkResult) -> SlotWalk:
        """As if a walk of one tree, that came to this, had been fetched. Of a slot on the host, without an event."""
        num_entries = len(walk.verified_id)
        self._host_out[0] = num_entries
        self._host_out[1 : 1 + num_entries] = (walk.verified_id << _LOCAL_BITS) | walk.accepted_indices
        return SlotWalk(self, trees.node_indptr[:-1], 1 + num_entries)

    def wait(self) -> None:
        """Until the last walk that was fetched is on the host."""
        if self._event is not None:
            self._event.synchronize()

    def is_ready(self) -> bool:
        """Whether ``wait`` would not wait."""
        return self._event is None or self._event.query()

    def first_tokens(self, num_rows: int, path_stride: int) -> torch.Tensor:
        """int32 [num_rows] on the device."""
        return self.paths[: num_rows * path_stride].view(num_rows, path_stride)[:, 1] >> _LOCAL_BITS

    def rows(self, num_rows: int, path_stride: int) -> np.ndarray:
        """int32 [num_rows, path_stride], valid until the slot is used again."""
        return self._host_out[: num_rows * path_stride].reshape(num_rows, path_stride)


@dataclass(frozen=True, slots=True)
class SlotWalk:
    """PendingWalk over a slot. A row: nodes of the path, then for each token << 6 | local node."""

    slot: WalkSlot
    roots: np.ndarray  # [b] int32
    path_stride: int

    def is_ready(self) -> bool:
        return self.slot.is_ready()

    def first_tokens(self) -> torch.Tensor:
        return self.slot.first_tokens(len(self.roots), self.path_stride)

    def result(self) -> WalkResult:
        self.slot.wait()
        rows = self.slot.rows(len(self.roots), self.path_stride)
        lengths = rows[:, 0]
        if len(rows) == 1:  # a slice, for the host has nothing else to do before a lone draft is asked
            path, roots = rows[0, 1 : 1 + lengths.item()], self.roots
        else:
            path = rows[:, 1:][np.arange(self.path_stride - 1) < lengths[:, None]]
            roots = np.repeat(self.roots, lengths)
        return WalkResult(
            accept_length=lengths - 1,
            accepted_indices=(path & ((1 << _LOCAL_BITS) - 1)) + roots,
            verified_id=path >> _LOCAL_BITS,
        )


def words_in(num_nodes: int, num_requests: int, num_terms: int = 0) -> int:
    """The most int32 words that ``WalkSlot.send`` packs, of that many bias terms."""
    return 7 * num_requests + 1 + 6 * num_nodes + 1 + 2 * num_terms


def _sampling_parts(trees: TreeBatch, sampling: SamplingBatch) -> list[np.ndarray]:
    """As ``kernels.triton_ops.tiles`` says, after the tree's."""
    num_requests = len(sampling.temperature)
    floor = np.maximum(np.log(np.maximum(sampling.min_p, _LEAST_MIN_P)), -_NOISE_SPAN).astype(np.float32)
    parts = [
        np.repeat(np.arange(num_requests, dtype=np.int32), np.diff(trees.node_indptr)),
        trees.positions,
        sampling.temperature.view(np.int32),
        sampling.top_k,
        sampling.top_p.view(np.int32),
        floor.view(np.int32),
        sampling.seed.view(np.int32),
    ]
    if sampling.bias_indptr is not None:
        assert sampling.bias_token is not None and sampling.bias_value is not None
        parts += [sampling.bias_indptr, sampling.bias_token, sampling.bias_value.view(np.int32)]
    return parts
