"""The target of a run: its files' config and text, and its weights on the run's device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from tokenizers import Tokenizer
from torch import Tensor

from engine.config import ModelConfig, load_model_config
from engine.device import choose_device
from engine.features import FeatureFuser
from engine.target_model import TargetModel
from engine.tp import TpGroup
from engine.weights import fingerprint, open_weights
from engine.weights.loader import WeightLoader
from engine.wire import dtype_named
from kernels.ops import Ops
from paceline.chat_template import ChatTemplate
from paceline.errors import ConfigError, ModelLoadError
from training.aux_tap import AuxTap
from training.chat_files import ChatText
from training.config import RunConfig


@dataclass(frozen=True, slots=True)
class TargetEnds:
    """The target's weights before its first layer and after its last one."""

    embedding: Tensor  # [V, H]
    norm: Tensor  # [H]
    lm_head: Tensor  # [V, H]; the embedding itself where they are tied


@dataclass(frozen=True, slots=True)
class Target:
    """A target's files, and where its weights are to be put."""

    path: Path
    config: ModelConfig
    device: torch.device
    dtype: torch.dtype
    ops: Ops

    @classmethod
    def of(cls, run: RunConfig, device: str | None = None) -> Target:
        """Raises ModelLoadError or ConfigError."""
        path = Path(run.model_path)
        config = load_model_config(path)
        at, ops = choose_device(device or run.device, run.kernel_backend, dtype=run.dtype, num_threads=run.num_threads)
        return cls(path, config, at, dtype_named(run.dtype), ops)

    def fingerprint(self) -> str:
        """Of the weights. Raises ModelLoadError."""
        return fingerprint(self.path)

    def chat(self) -> ChatText:
        """Raises ModelLoadError where there is no tokenizer, ConfigError where there is no chat template."""
        folder = self.path.parent if self.path.is_file() else self.path
        template = ChatTemplate.load(str(self.path))
        if template is None:
            raise ConfigError(
                f"{folder} has no chat template, in which questions are asked: put chat_template.jinja beside the model"
            )
        file = folder / "tokenizer.json"
        try:
            tokenizer = Tokenizer.from_buffer(file.read_bytes())
        except OSError as error:
            raise ModelLoadError(f"cannot read the tokenizer {file}: {error.strerror}; set --model-path") from error
        # tokenizers raises a bare Exception for a file that does not parse.
        except Exception as error:
            raise ModelLoadError(f"{file} is no tokenizer of the tokenizers library: {error}") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return ChatText(template, tokenizer)

    def load(self, tap: AuxTap | None = None) -> TargetModel:
        """tap: what a step's features then are. Raises ModelLoadError, and ConfigError for too little memory."""
        # The model asks no more of its fuser than the tap offers.
        fuser = cast(FeatureFuser | None, tap)
        with self._loader() as loader:
            return TargetModel(self.config, loader, fuser=fuser, ops=self.ops)

    def ends(self) -> TargetEnds:
        """Raises ModelLoadError, and ConfigError for too little memory."""
        shape = (self.config.vocab_size, self.config.hidden_size)
        with self._loader() as loader:
            embedding = loader.replicated("model.embed_tokens.weight", shape)
            tied = self.config.tie_word_embeddings
            return TargetEnds(
                embedding=embedding,
                norm=loader.replicated("model.norm.weight", shape[1:]),
                lm_head=embedding if tied else loader.replicated("lm_head.weight", shape),
            )

    @contextmanager
    def _loader(self) -> Iterator[WeightLoader]:
        with (
            fitting(self.device, "take a smaller target, or another --device"),
            closing(open_weights(self.path, device=self.device)) as source,
        ):
            yield WeightLoader(source, dtype=self.dtype, device=self.device, tp=TpGroup())


@contextmanager
def fitting(device: torch.device, remedy: str) -> Iterator[None]:
    """Turns a full device into a ConfigError that says what to do."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ConfigError(f"{device} has too little memory: {str(error).partition('. ')[0]}; {remedy}") from error
