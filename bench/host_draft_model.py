"""A head that computes nothing under a real DeviceDrafter: what ``bench.host_draft`` times is left."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from bench.host_path_model import NEXT_TOKEN, wait_until
from draft_service.codec import Edge
from draft_service.rehearsal import Rehearsal
from engine.device_drafter import DeviceDrafter, DrafterLimits
from engine.extend_batch import ExtendBatch
from engine.graph_capture import Launch
from engine.head_model import HeadModel
from engine.pool import HeadCache
from engine.tree_columns import TreeColumns
from engine.tree_source import PendingTrees
from kernels.growth import GrowingTrees
from kernels.ops import AttentionLimits, AttentionPlanner
from kernels.reference.ops import ReferenceOps
from kernels.triton_ops.attention_planner import TritonAttentionPlanner
from paceline.types import TreeShape

HIDDEN, VOCAB, PAGE_SIZE = 4096, 49152, 16
SHAPE = TreeShape(5, 4, 16)
EDGE = Edge(vocab_size=VOCAB, feature_size=HIDDEN, feature_id="", head_fingerprint="")
_DRAFT_VOCAB = 16384
_PARENTS = (-1, 0, 0, 0, 1, 1, 2, 2, 4, 4, 5, 6, 8, 8, 9, 10)
_TOKENS = (NEXT_TOKEN, *range(100, 100 + SHAPE.num_draft_tokens - 1))
_HEADS, _KV_HEADS, _HEAD_DIM = 32, 8, 128


class _HostOps(ReferenceOps):
    """With the attention planner of a GPU, whose rule the host's tables follow."""

    def attention_planner(self, limits: AttentionLimits) -> AttentionPlanner:
        return TritonAttentionPlanner(limits, self.device)


class StampedDrafter:
    """A DeviceDrafter whose graphs replay nothing, but note when: ``stamps_s`` of the thread's clock.

    A round's stamps: begun, rows launched, growth launched, trees asked for. All trees are the same.
    """

    def __init__(self, num_pages: int, *, max_sessions: int, round_s: float = 0.0) -> None:
        """round_s: from a round's beginning to its trees."""
        self.stamps_s: list[float] = []
        self._round_s = round_s
        limits = DrafterLimits(max(512, 2 * max_sessions), max_sessions)
        nothing = torch.zeros(1)
        model: Any = _IdleModel()
        self._drafter = DeviceDrafter(model, HeadCache(nothing, nothing, num_pages, PAGE_SIZE), limits)
        self._drafter.capture([SHAPE], self._capture)

    def begin(self, batch: ExtendBatch) -> PendingTrees:
        self._stamp()
        due_s = time.monotonic() + self._round_s
        return _Stamped(self._drafter.begin(batch), self._stamp, due_s)

    def rehearsal(self) -> Rehearsal:
        """Of the drafter's rounds."""
        return Rehearsal(self._drafter, edge=EDGE, dtype="bfloat16", page_size=PAGE_SIZE)

    def _capture(self, launch: Launch) -> Launch:
        trees = launch.args[0] if isinstance(launch, functools.partial) else None
        if isinstance(trees, GrowingTrees):
            trees.nodes[:] = torch.tensor([len(_PARENTS), *_TOKENS, *_PARENTS], dtype=torch.int32)
        return self._stamp

    def _stamp(self) -> None:
        self.stamps_s.append(time.thread_time())


@dataclass(frozen=True, slots=True)
class _Stamped:
    pending: PendingTrees
    stamp: Launch
    due_s: float

    def is_ready(self) -> bool:
        """Only to wait without looking, as for the target's step: the machine may have no core to spare."""
        return True

    def trees(self) -> TreeColumns:
        self.stamp()
        wait_until(self.due_s)
        return self.pending.trees()


class _IdleModel:
    """What a DeviceDrafter asks of a HeadModel, less the forward."""

    attention_planner = HeadModel.attention_planner

    def __init__(self) -> None:
        self.config = SimpleNamespace(
            hidden_size=HIDDEN,
            num_heads=_HEADS,
            num_kv_heads=_KV_HEADS,
            head_dim=_HEAD_DIM,
            draft_vocab_size=_DRAFT_VOCAB,
        )
        self.dtype = torch.bfloat16
        self.device = torch.device("cpu")
        self.ops = _HostOps()
        self.all_target_ids = torch.arange(_DRAFT_VOCAB)
