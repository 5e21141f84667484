"""Checkpoint: all that a run needs to go on, in one file that is whole or absent."""

from __future__ import annotations

import pickle
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.head_config import HeadConfig
from engine.rope_config import RopeConfig
from paceline.errors import ConfigError
from training.draft_vocabulary import DraftVocabulary
from training.files import whole_file

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Tensors lie on the CPU."""

    step: int  # optimizer steps done
    num_tokens: int  # trained on so far
    config: HeadConfig
    target_ids: Tensor  # [draft vocabulary] int64
    settings: dict[str, Any]  # all that the run depends on, as JSON
    weights: dict[str, Tensor]  # fp32, under the published names
    optimizer: dict[str, list[Tensor]]
    sums: Tensor  # [4, depths] of the log's next line

    @property
    def vocabulary(self) -> DraftVocabulary:
        return DraftVocabulary(self.target_ids, self.config.vocab_size)

    def save(self, path: Path) -> None:
        """Raises StorageError."""
        values = {name: getattr(self, name) for name in self.__slots__ if name != "config"}
        with whole_file(path) as part:
            try:
                torch.save({"format": _FORMAT, "config": asdict(self.config), **values}, part)
            except RuntimeError as error:  # what torch makes of a disk that is full
                raise OSError(str(error).partition("\n")[0]) from error

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Raises ConfigError for a damaged file."""
        try:
            values = torch.load(path, map_location="cpu", weights_only=True)
            if values.pop("format") != _FORMAT:
                raise ConfigError(f"{path} was written by another version: name another --out")
            config = values.pop("config")
            rope = RopeConfig(**config.pop("rope"))
            return cls(config=HeadConfig(rope=rope, **config), **values)
        except (OSError, RuntimeError, KeyError, TypeError, EOFError, pickle.UnpicklingError) as error:
            raise ConfigError(f"{path} is damaged ({error}): remove its folder and train again") from error
