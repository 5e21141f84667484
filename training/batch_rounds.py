"""BatchRounds: rounds of speculation of many prompts at once, each of which gets what engine.reference_loop gives it
alone (in float32; in bfloat16 up to ties)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from engine.device_drafter import DeviceDrafter, DrafterLimits
from engine.drafter import Drafter, ExtendItem, ProposeParams
from engine.graph_capture import CudaCapture
from engine.head_model import HeadModel
from engine.pages import PageAllocator, PageTable, pages_for
from engine.plan import StepBuilder, compaction
from engine.sampling import sampling_batch
from engine.target_model import TargetModel
from kernels.ops import WalkResult
from paceline.tree import MAX_NODES, DraftTree
from paceline.types import SamplingParams, TreeShape

_PAGE_SIZE = 16
_CHUNK_ROWS = 4096
_DRAFT_ROWS = 4096
_GRAPH_ROWS = 512


@dataclass(slots=True, eq=False)
class Rounds:
    """One prompt's way to its end."""

    prompt: np.ndarray  # [n >= 1] int32
    params: SamplingParams  # its stop ids include the model's end tokens
    emitted: list[int] = field(default_factory=list)
    accept_lengths: list[int] = field(default_factory=list)  # of rounds with a tree, without the extra token

    @property
    def is_done(self) -> bool:
        emitted, params = self.emitted, self.params
        return len(emitted) >= params.max_tokens or (bool(emitted) and emitted[-1] in params.stop_token_ids)

    def keep(self, tokens: np.ndarray) -> None:
        """Appends one by one, up to the end."""
        for token in tokens.tolist():
            self.emitted.append(token)
            if self.is_done:
                return


@dataclass(slots=True, eq=False)
class _Seat:
    rounds: Rounds
    table: PageTable
    committed_len: int = 0
    tree: DraftTree | None = None
    move: tuple[np.ndarray, np.ndarray] | None = None


class BatchRounds:
    """Owns the pages of num_seats sequences of at most max_tokens tokens each, in target and head."""

    def __init__(self, target: TargetModel, head: HeadModel, *, num_seats: int, max_tokens: int) -> None:
        self._target, self._head = target, head
        size = pages_for(max_tokens + MAX_NODES, _PAGE_SIZE)
        self._cache = target.make_cache(num_seats * size, _PAGE_SIZE)
        self._head_cache = head.make_cache(num_seats * size, _PAGE_SIZE)
        allocator = PageAllocator(num_seats * size, _PAGE_SIZE)
        self._tables = [PageTable(allocator) for _ in range(num_seats)]
        for table in self._tables:
            table.reserve(size * _PAGE_SIZE)
        self._drafter: Drafter | DeviceDrafter = Drafter(head, self._head_cache, _DRAFT_ROWS)

    def capture(self, shapes: Sequence[TreeShape]) -> None:
        """Steps and these trees become CUDA graphs, as in the services, where the kernels support it."""
        if not self._target.ops.supports_graphs:
            return
        self._target.capture(self._cache, _GRAPH_ROWS)
        limits = DrafterLimits(max_rows=_GRAPH_ROWS, max_sessions=len(self._tables))
        drafter = DeviceDrafter(self._head, self._head_cache, limits)
        drafter.capture(shapes, CudaCapture(self._head.device))
        self._drafter = drafter

    def run(
        self, prompts: Sequence[Rounds], shape: TreeShape | None, *, on_end: Callable[[Rounds], None] | None = None
    ) -> None:
        """MUTATES the prompts, each to its end. shape: None decodes plainly. on_end is called with each that ends."""
        waiting = list(reversed(prompts))
        free = list(self._tables)
        seats: list[_Seat] = []
        while waiting or seats:
            begun = [_Seat(waiting.pop(), free.pop()) for _ in range(min(len(waiting), len(free)))]
            for part in _parts(begun):
                self._prefill(part, shape)
            seats += begun
            for seat in seats:
                if seat.rounds.is_done:
                    free.append(seat.table)
                    if on_end is not None:
                        on_end(seat.rounds)
            seats = [seat for seat in seats if not seat.rounds.is_done]
            if seats:
                self._verify(seats, shape)

    def _prefill(self, seats: Sequence[_Seat], shape: TreeShape | None) -> None:
        builder = StepBuilder(_PAGE_SIZE)
        for seat in seats:
            builder.add_chunk(seat.table, seat.rounds.prompt, 0, sample=True)
        walk, features = self._step(builder, seats)
        rows = features.split([len(seat.rounds.prompt) for seat in seats])
        tokens = []
        for seat, token in zip(seats, walk.verified_id, strict=True):
            seat.committed_len = len(seat.rounds.prompt)
            seat.rounds.keep(np.array([token]))
            tokens.append(np.append(seat.rounds.prompt[1:], token).astype(np.int32))
        self._propose(seats, tokens, rows, shape)

    def _verify(self, seats: Sequence[_Seat], shape: TreeShape | None) -> None:
        builder = StepBuilder(_PAGE_SIZE)
        for seat in seats:
            assert seat.tree is not None
            if seat.move is not None:
                builder.move(*seat.move)
            builder.add_tree(seat.table, seat.tree, seat.committed_len)
        walk, features = self._step(builder, seats)
        counts = (walk.accept_length + 1).tolist()
        cuts = np.cumsum(counts)[:-1]
        nodes = torch.from_numpy(walk.accepted_indices.astype(np.int64)).to(features.device)
        rows, tokens = features[nodes].split(counts), np.split(walk.verified_id, cuts)
        root = 0
        for seat, path, kept in zip(seats, np.split(walk.accepted_indices, cuts), tokens, strict=True):
            assert seat.tree is not None
            seat.move = compaction(seat.table, seat.committed_len, path - root)
            seat.committed_len += len(path)
            root += seat.tree.num_nodes
            if seat.tree.num_nodes > 1:
                seat.rounds.accept_lengths.append(len(path) - 1)
            seat.rounds.keep(kept)
        self._propose(seats, tokens, rows, shape)

    def _step(self, builder: StepBuilder, seats: Sequence[_Seat]) -> tuple[WalkResult, Tensor]:
        plan = builder.build()
        output = self._target.step(plan, self._cache)
        assert output.logits is not None and output.features is not None
        sampling = sampling_batch([seat.rounds.params for seat in seats])
        return self._target.ops.start_walk(output.logits, plan.trees, sampling).result(), output.features

    def _propose(
        self, seats: Sequence[_Seat], tokens: Sequence[np.ndarray], rows: Sequence[Tensor], shape: TreeShape | None
    ) -> None:
        """Hands what was committed to the head, and gives each seat that goes on its next tree."""
        going = [
            (seat, kept, part) for seat, kept, part in zip(seats, tokens, rows, strict=True) if not seat.rounds.is_done
        ]
        trees: list[DraftTree | None] = [None] * len(going)
        if shape is not None and going:
            items = [
                ExtendItem(seat.table, seat.committed_len - len(kept), kept, part, self._params(seat, shape))
                for seat, kept, part in going
            ]
            trees = self._drafter.extend(items)
        for (seat, kept, _), tree in zip(going, trees, strict=True):
            seat.tree = DraftTree.single(int(kept[-1])) if tree is None else tree

    def _params(self, seat: _Seat, shape: TreeShape) -> ProposeParams | None:
        """The shape, less the levels that would pass the context's end."""
        fitted = shape.within(self._target.config.max_position_embeddings - 1 - seat.committed_len)
        if fitted is None:
            return None
        params = seat.rounds.params
        return ProposeParams.of(fitted, seed=params.seed, temperature=params.temperature)


def _parts(seats: Sequence[_Seat]) -> list[list[_Seat]]:
    """Runs whose prompts fit one step, at least one each."""
    parts: list[list[_Seat]] = []
    room = 0
    for seat in seats:
        size = len(seat.rounds.prompt)
        if not parts or size > room:
            parts.append([])
            room = _CHUNK_ROWS
        parts[-1].append(seat)
        room -= size
    return parts
