"""DraftVocabulary: the tokens that a head can propose."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.errors import ConfigError
from training.config import ShapeConfig
from training.corpus import QUESTION, Corpus
from training.corpus_report import covering_size, token_counts

_MULTIPLE = 64  # of a size that is chosen by coverage: products of odd sizes are slow on a GPU


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """Draft id i is the target's token target_ids[i]. Ascending."""

    target_ids: Tensor  # [draft vocabulary] int64
    vocab_size: int  # the target's

    @classmethod
    def chosen(cls, corpus: Corpus, shape: ShapeConfig, vocab_size: int) -> DraftVocabulary:
        """The most frequent tokens of questions and answers; ties go to the lower id.

        Raises ConfigError for a size past the target's vocabulary.
        """
        counts = token_counts(corpus, corpus.regions() >= QUESTION, vocab_size)
        size = shape.draft_vocab_size
        if size is None:
            covering = covering_size(counts, shape.draft_vocab_coverage)
            size = min(-(-covering // _MULTIPLE) * _MULTIPLE, vocab_size)
        if size > vocab_size:
            raise ConfigError(f"--draft-vocab-size is {size}; the target has {vocab_size} tokens")
        frequent = np.sort(np.argsort(-counts, kind="stable")[:size])
        return cls(torch.from_numpy(frequent), vocab_size)

    def __len__(self) -> int:
        return len(self.target_ids)

    @property
    def d2t(self) -> Tensor:
        """[draft vocabulary] int64: differences, target id = draft id + d2t[draft id]."""
        return self.target_ids - torch.arange(len(self))

    @property
    def t2d(self) -> Tensor:
        """[target vocabulary] bool: the tokens that the head can propose."""
        mask = torch.zeros(self.vocab_size, dtype=torch.bool)
        mask[self.target_ids] = True
        return mask

    @property
    def draft_ids(self) -> Tensor:
        """[target vocabulary] int64: the draft id of each token, -1 where it has none."""
        ids = torch.full((self.vocab_size,), -1)
        ids[self.target_ids] = torch.arange(len(self))
        return ids

    def check_ends(self, eos_ids: tuple[int, ...]) -> None:
        """Raises ConfigError where no end token can be proposed: the vocabulary is too small for the data."""
        if not any(bool(self.t2d[i]) for i in eos_ids):
            raise ConfigError(
                f"the draft vocabulary of {len(self)} tokens has none of the target's end tokens {eos_ids}: it is too "
                "small for these data; raise --draft-vocab-size"
            )
