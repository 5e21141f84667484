"""HeadVocabulary: a head's tokens in and out, partly its own and partly the target's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.head_config import HeadConfig
from engine.model_config import ModelConfig
from engine.weights.loader import WeightLoader
from engine.weights.source import WeightSource
from paceline.errors import ModelLoadError

_EMBEDDING = "model.embed_tokens.weight"
_LM_HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class HeadVocabulary:
    embedding: Tensor  # [target vocabulary, H]
    lm_head: Tensor  # [draft vocabulary, H]
    target_ids: Tensor  # [draft vocabulary] int64: the target's id of each draft id


def load_vocabulary(
    config: HeadConfig, target: ModelConfig, *, loader: WeightLoader, target_loader: WeightLoader
) -> HeadVocabulary:
    """loader reads the head's file, target_loader the target's. What the head's file lacks comes from the target.

    Raises ModelLoadError where d2t is missing or leaves the target's vocabulary, or nothing fits.
    """
    target_ids = _target_ids(config, target, loader.source)
    hidden = config.hidden_size
    if loader.source.has("embed_tokens.weight"):
        if config.vocab_size < target.vocab_size:
            raise ModelLoadError(
                f"{loader.source.origin} embeds {config.vocab_size} tokens and the target has {target.vocab_size}; "
                "pass the head that was trained for it"
            )
        embedding = loader.replicated("embed_tokens.weight", (config.vocab_size, hidden))
    else:
        embedding = target_loader.replicated(_EMBEDDING, (target.vocab_size, hidden))
    if loader.source.has(_LM_HEAD):
        lm_head = loader.replicated(_LM_HEAD, (config.draft_vocab_size, hidden))
    else:
        name = _EMBEDDING if target.tie_word_embeddings else _LM_HEAD
        lm_head = target_loader.selected(name, target_ids, (target.vocab_size, hidden))
    return HeadVocabulary(embedding, lm_head, target_ids.to(loader.device))


def _target_ids(config: HeadConfig, target: ModelConfig, source: WeightSource) -> Tensor:
    """d2t holds differences: target id = draft id + d2t[draft id]."""
    draft_ids = torch.arange(config.draft_vocab_size)
    if not source.has("d2t"):
        if config.draft_vocab_size != target.vocab_size:
            raise ModelLoadError(
                f"{source.origin} has no d2t tensor, and its draft vocabulary of {config.draft_vocab_size} is not the "
                f"target's of {target.vocab_size}: its tokens have no meaning; export the head with d2t"
            )
        return draft_ids
    if source.shape("d2t") != (config.draft_vocab_size,):
        raise ModelLoadError(
            f"{source.origin}: d2t has shape {list(source.shape('d2t'))}; the head's draft_vocab_size is "
            f"{config.draft_vocab_size}: they must agree"
        )
    target_ids = draft_ids + source.get("d2t", torch.int64)
    low, high = int(target_ids.min()), int(target_ids.max())
    if low < 0 or high >= target.vocab_size:
        raise ModelLoadError(
            f"{source.origin}: d2t leads to target ids {low} to {high}; the target has {target.vocab_size} tokens: "
            "pass the head that was trained for it"
        )
    return target_ids
