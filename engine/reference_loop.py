"""InProcess: one request at a time, target and head in one process, no services. The oracle for what they generate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from engine.drafter import Drafter, ExtendItem, ProposeParams
from engine.head_model import HeadModel
from engine.pages import PageAllocator, PageTable, pages_for
from engine.plan import StepBuilder, StepPlan, compaction
from engine.sampling import sampling_batch
from engine.target_model import TargetModel
from engine.tp import TpGroup
from kernels.backends import load_ops
from kernels.ops import WalkResult
from paceline.errors import InvalidInputError
from paceline.tree import MAX_NODES, DraftTree
from paceline.types import FinishReason, SamplingParams, TreeShape

_PAGE_SIZE = 16
_CHUNK_ROWS = 512


@dataclass(frozen=True, slots=True)
class Generation:
    """What one request gave."""

    tokens: list[int]
    finish_reason: FinishReason
    num_rounds: int  # verify steps, trees of one node included
    accept_lengths: list[int]  # accepted drafts, without the extra token, of each round with n > 1

    @property
    def mean_accepted_length(self) -> float:
        """Accepted drafts and the extra token, per round with n > 1, before any cut by a stop. 0 without one."""
        rounds = len(self.accept_lengths)
        return (sum(self.accept_lengths) + rounds) / rounds if rounds else 0.0


class InProcess:
    """A target and, for speculation, its head (None: plain decoding only)."""

    def __init__(
        self,
        model_path: Path,
        head_path: Path | None,
        dtype: torch.dtype,
        *,
        backend: str = "auto",
        device: str = "cpu",
        num_threads: int | None = None,
    ) -> None:
        """Raises ModelLoadError."""
        self.ops = load_ops(backend, device, num_threads=num_threads)
        at = torch.device(device)
        self.target = TargetModel.load(
            model_path, head_path=head_path, dtype=dtype, ops=self.ops, device=at, tp=TpGroup()
        )
        self.head: HeadModel | None = None
        if head_path is not None:
            self.head = HeadModel.load(head_path, model_path, dtype=dtype, ops=self.ops, device=at)

    def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        shape: TreeShape | None = None,
        *,
        on_tokens: Callable[[list[int]], None] | None = None,
    ) -> Generation:
        """Token ids in and out. shape: how far to speculate; None decodes plainly.

        on_tokens is called with the kept tokens of each step, as soon as they are known. Raises InvalidInputError
        for a prompt that is empty, has unknown ids or leaves no room in the context, and for a shape without a head.
        """
        self._check(prompt, shape)
        run = _Run(self, prompt, params, shape=shape)
        while run.finish_reason is None:
            kept = run.step()
            if on_tokens is not None and kept:
                on_tokens(kept)
        return Generation(run.emitted, run.finish_reason, run.num_rounds, run.accept_lengths)

    def _check(self, prompt: Sequence[int], shape: TreeShape | None) -> None:
        context, vocab_size = self.target.config.max_position_embeddings, self.target.config.vocab_size
        if not 0 < len(prompt) < context:
            raise InvalidInputError(f"the prompt has {len(prompt)} tokens; it must have 1 to {context - 1}")
        low, high = min(prompt), max(prompt)
        if low < 0 or high >= vocab_size:
            raise InvalidInputError(f"the prompt's token ids go from {low} to {high}; send 0 to {vocab_size - 1}")
        if shape is not None and self.head is None:
            raise InvalidInputError("speculation was asked for and no head is loaded; pass head_path")


@dataclass(slots=True)
class _Session:
    """The draft's side of the run."""

    drafter: Drafter
    table: PageTable
    shape: TreeShape
    committed_len: int = 0

    def extend(self, tokens: np.ndarray, features: Tensor, propose: ProposeParams | None) -> DraftTree | None:
        (tree,) = self.drafter.extend([ExtendItem(self.table, self.committed_len, tokens, features, propose)])
        self.committed_len += len(tokens)
        return tree


@dataclass(slots=True)
class _Move:
    src: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    dst: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))


class _Run:
    """One request from prompt to end. A step is one target forward."""

    def __init__(
        self, loop: InProcess, prompt: Sequence[int], params: SamplingParams, *, shape: TreeShape | None
    ) -> None:
        config = loop.target.config
        self._loop = loop
        self._prompt = np.array(prompt, np.int32)
        self._params = params
        self._sampling = sampling_batch([params])
        self._context = config.max_position_embeddings
        self._max_tokens = min(params.max_tokens, self._context - len(prompt))
        eos = () if params.ignore_eos else config.eos_token_ids
        self._stop_ids = frozenset(params.stop_token_ids).union(eos)

        num_pages = pages_for(len(prompt) + self._max_tokens + MAX_NODES, _PAGE_SIZE)
        self._cache = loop.target.make_cache(num_pages, _PAGE_SIZE)
        self._table = _full_table(num_pages)
        self._session: _Session | None = None
        if shape is not None:
            assert loop.head is not None
            drafter = Drafter(loop.head, loop.head.make_cache(num_pages, _PAGE_SIZE), _CHUNK_ROWS)
            self._session = _Session(drafter, _full_table(num_pages), shape)

        self._committed_len = 0
        self._tree: DraftTree | None = None  # None while the prompt is being prefilled
        self._move = _Move()
        self.emitted: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.num_rounds = 0
        self.accept_lengths: list[int] = []

    def step(self) -> list[int]:
        """Returns the tokens that it kept."""
        return self._prefill() if self._tree is None else self._verify(self._tree)

    def _prefill(self) -> list[int]:
        start, stop = self._committed_len, min(self._committed_len + _CHUNK_ROWS, len(self._prompt))
        is_last = stop == len(self._prompt)
        builder = StepBuilder(_PAGE_SIZE)
        builder.add_chunk(self._table, self._prompt[start:stop], start, sample=is_last)
        walk, features = self._forward(builder.build())
        self._committed_len = stop
        following = walk.verified_id if is_last else self._prompt[stop : stop + 1]
        kept = self._keep(walk.verified_id)
        self._propose(np.append(self._prompt[start + 1 : stop], following), features)
        return kept

    def _verify(self, tree: DraftTree) -> list[int]:
        builder = StepBuilder(_PAGE_SIZE)
        builder.move(self._move.src, self._move.dst)
        builder.add_tree(self._table, tree, self._committed_len)
        walk, features = self._forward(builder.build())
        path = walk.accepted_indices
        self._move = _Move(*compaction(self._table, self._committed_len, path))
        self._committed_len += len(path)
        self.num_rounds += 1
        if tree.num_nodes > 1:
            self.accept_lengths.append(len(path) - 1)
        kept = self._keep(walk.verified_id)
        self._propose(walk.verified_id, None if features is None else features[path])
        return kept

    def _forward(self, plan: StepPlan) -> tuple[WalkResult, Tensor | None]:
        output = self._loop.target.step(plan, self._cache)
        assert output.logits is not None
        return self._loop.ops.start_walk(output.logits, plan.trees, self._sampling).result(), output.features

    def _keep(self, tokens: np.ndarray) -> list[int]:
        """Appends one by one; at a stop the rest is dropped. A stop wins over the length."""
        before = len(self.emitted)
        for token in tokens.tolist():
            self.emitted.append(token)
            if token in self._stop_ids:
                self.finish_reason = FinishReason.STOP
            elif len(self.emitted) == self._max_tokens:
                self.finish_reason = FinishReason.LENGTH
            if self.finish_reason is not None:
                break
        return self.emitted[before:]

    def _propose(self, tokens: np.ndarray, features: Tensor | None) -> None:
        """Hands the committed rows to the head and takes the next tree."""
        if self.finish_reason is not None:
            return
        prompt_done = self._committed_len >= len(self._prompt)
        tree = None
        if self._session is not None:
            assert features is not None
            tree = self._session.extend(tokens, features, self._propose_params() if prompt_done else None)
        if prompt_done:
            self._tree = DraftTree.single(int(tokens[-1])) if tree is None else tree

    def _propose_params(self) -> ProposeParams | None:
        """The shape, less the levels that would pass the context's end."""
        assert self._session is not None
        fitted = self._session.shape.within(self._context - 1 - self._committed_len)
        if fitted is None:
            return None
        params = self._params
        return ProposeParams.of(fitted, seed=params.seed, temperature=params.temperature)


def _full_table(num_pages: int) -> PageTable:
    """A pool of its own, all in one table."""
    table = PageTable(PageAllocator(num_pages, _PAGE_SIZE))
    table.reserve(num_pages * _PAGE_SIZE)
    return table
