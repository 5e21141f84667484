"""Teacher: what the target says of each position of a batch, computed on the fly through the engine's own step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from engine.pages import PageAllocator, PageTable, pages_for
from engine.plan import StepBuilder
from engine.step_graphs import StepOutput
from training.aux_tap import AuxTap
from training.batches import Batch, BatchRules
from training.draft_vocabulary import DraftVocabulary
from training.loss_rows import SoftTargets, TargetTables, rows_of
from training.target import Target

_PAGE_SIZE = 16
_STEP_VALUES = {"cuda": 2**30, "cpu": 2**27}  # logits of one step, in fp32
_STEP_CONVERSATIONS = 512


@dataclass(frozen=True, slots=True)
class Lesson:
    """Of a batch [b, t], on the device. Values past a conversation's end are 0."""

    tokens: Tensor  # [b, t] int64
    weights: Tensor  # [b, t] fp32, see Batch
    aux: Tensor  # [b, t, 3 H] of the target's dtype
    probs: Tensor  # [b, t, draft vocabulary] fp32: the next token's distribution within the draft vocabulary, sum 1
    mass: Tensor  # [b, t] fp32: the share of the whole distribution that lies within it
    best: Tensor  # [b, t] int64: the draft id of the target's likeliest next token, -1 where it has none


class Teacher:
    """Owns the target's weights and a pool for one step."""

    def __init__(
        self,
        target: Target,
        layers: tuple[int, int, int],
        *,
        vocabulary: DraftVocabulary,
        rules: BatchRules,
        temperature: float = 1.0,
    ) -> None:
        """layers: of whose input aux is taken; rules: of the batches to come; temperature: of probs alone.

        Raises ModelLoadError, and ConfigError for too little memory.
        """
        self._model = target.load(AuxTap(layers, target.config.hidden_size))
        self._device = target.device
        self._temperature = temperature
        self._rows = rows_of(target.ops)
        self._tables = TargetTables.of(vocabulary, target.device)
        fitting = min(_STEP_VALUES[target.device.type] // target.config.vocab_size, rules.batch_tokens)
        self._max_rows = max(fitting, rules.sequence_tokens)
        # Of each conversation the last page may be nearly empty.
        self._cache = self._model.make_cache(pages_for(self._max_rows, _PAGE_SIZE) + _STEP_CONVERSATIONS, _PAGE_SIZE)

    def teach(self, batch: Batch) -> Lesson:
        """Waits for nothing: on a GPU the result is on its way."""
        shape = batch.tokens.shape
        size, hidden = int(np.prod(shape)), self._model.feature_size
        aux = torch.zeros(size, hidden, dtype=self._model.dtype, device=self._device)
        targets = SoftTargets.empty(size, len(self._tables.target_ids), self._device)
        with torch.no_grad():
            for rows in self._groups(batch.lengths):
                places, output = self._places(batch, rows), self._step(batch, rows)
                assert output.logits is not None and output.features is not None
                aux.index_copy_(0, places, output.features)
                self._rows.write_targets(output.logits, places, self._tables, targets, temperature=self._temperature)
        return Lesson(
            tokens=self._upload(batch.tokens),
            weights=self._upload(batch.weights),
            aux=aux.view(*shape, -1),
            probs=targets.probs.view(*shape, -1),
            mass=targets.mass.view(shape),
            best=targets.best.view(shape),
        )

    def _step(self, batch: Batch, rows: range) -> StepOutput:
        """One forward of those conversations whole, with the logits of all their tokens."""
        builder = StepBuilder(_PAGE_SIZE)
        allocator = PageAllocator(self._cache.num_pages, _PAGE_SIZE)
        for row in rows:
            length = int(batch.lengths[row])
            table = PageTable(allocator)
            table.reserve(length)
            builder.add_chunk(table, batch.tokens[row, :length], 0, sample=True)
        plan = builder.build()
        return self._model.step(replace(plan, logit_rows=np.arange(plan.num_rows, dtype=np.int32)), self._cache)

    def _places(self, batch: Batch, rows: range) -> Tensor:
        """int64: where their tokens lie in the flat batch."""
        width = batch.tokens.shape[1]
        is_token = np.arange(width) < batch.lengths[rows.start : rows.stop, None]
        return self._upload(np.flatnonzero(is_token) + rows.start * width)

    def _groups(self, lengths: np.ndarray) -> Iterator[range]:
        """Runs of conversations whose tokens fit one step and its pool."""
        first, room = 0, self._max_rows
        for row, length in enumerate(lengths.tolist()):
            if length > room or row - first == _STEP_CONVERSATIONS:
                yield range(first, row)
                first, room = row, self._max_rows
            room -= length
        yield range(first, len(lengths))

    def _upload(self, array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if self._device.type == "cuda":
            return tensor.pin_memory().to(self._device, non_blocking=True)
        return tensor
