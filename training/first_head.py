"""FirstHead: the shape and the weights that training begins with, new ones or another head's."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from engine.config import HeadConfig, load_head_config
from engine.head_config import NUM_AUX
from engine.head_weights import HeadSource, open_head_weights
from engine.model_config import ModelConfig
from paceline.errors import ConfigError
from training.config import ShapeConfig
from training.corpus import Corpus
from training.draft_vocabulary import DraftVocabulary
from training.head_network import HeadNetwork
from training.target import Target, TargetEnds

_MLP = "midlayer.mlp."


@dataclass(frozen=True, slots=True)
class HeadPlan:
    """What a head is to be, before it has weights."""

    config: HeadConfig
    vocabulary: DraftVocabulary
    init_from: Path | None

    @classmethod
    def of(cls, target: ModelConfig, shape: ShapeConfig, corpus: Corpus) -> HeadPlan:
        """Sizes that shape does not set are those of --init-from, or the target's.

        Raises ModelLoadError for a head of another target, ConfigError for one with parts that are not trained here.
        """
        if not shape.init_from:
            vocabulary = DraftVocabulary.chosen(corpus, shape, target.vocab_size)
            return cls(_with_sizes(_new_config(target), shape, vocabulary), vocabulary, None)
        path = Path(shape.init_from)
        config = load_head_config(path)
        config.check_target(target, str(path))
        _refuse_switches(config, path)
        if config.vocab_size != target.vocab_size:
            raise ConfigError(f"{path} is for {config.vocab_size} tokens; the target has {target.vocab_size}")
        with closing(open_head_weights(path, config)) as source:
            _refuse_parts(source)
            vocabulary = _vocabulary_of(config, source)
        if shape.draft_vocab_size is not None:
            vocabulary = DraftVocabulary.chosen(corpus, shape, target.vocab_size)
        return cls(_with_sizes(config, shape, vocabulary), vocabulary, path)


def first_weights(
    plan: HeadPlan, target: Target, ends: TargetEnds, *, aux_scale: Tensor, seed: int
) -> dict[str, Tensor]:
    """fp32 on the CPU, under the published names. Raises ModelLoadError.

    New matrices are normal with variance 1 / inputs. fc begins as the last of the three aux inputs, scaled to unit
    size, for that one is nearest to what the target says; norm and lm_head begin as the target's.
    aux_scale: [3] fp32, the root mean square of each aux input.
    """
    generator = torch.Generator().manual_seed(seed)
    shapes = {name: value.shape for name, value in HeadNetwork(plan.config).state_dict().items()}
    weights = {name: _random(shape, generator) for name, shape in shapes.items()}
    width = target.config.hidden_size
    fc = weights["fc.weight"].unflatten(1, (NUM_AUX, width)) / 4
    fc[:, -1] += torch.eye(plan.config.hidden_size, width)
    weights["fc.weight"] = (fc / aux_scale[:, None]).flatten(1)
    if plan.config.hidden_size == width:
        weights["norm.weight"] = ends.norm.float().cpu()
        weights["lm_head.weight"] = ends.lm_head[plan.vocabulary.target_ids.to(ends.lm_head.device)].float().cpu()
    if plan.init_from is not None:
        _take_over(weights, plan)
    return weights


def _take_over(weights: dict[str, Tensor], plan: HeadPlan) -> None:
    """MUTATES weights: what the other head has. A wider MLP's new values begin without effect."""
    assert plan.init_from is not None
    config = load_head_config(plan.init_from)
    with closing(open_head_weights(plan.init_from, config)) as source:
        held = {name: source.get(name, torch.float32).clone() for name in weights if source.has(name)}
        vocabulary = _vocabulary_of(config, source)
    if "lm_head.weight" in held:
        rows = vocabulary.draft_ids[plan.vocabulary.target_ids]
        weights["lm_head.weight"][rows >= 0] = held.pop("lm_head.weight")[rows[rows >= 0]]
    inner = min(config.intermediate_size, plan.config.intermediate_size)
    for name in ("gate_proj", "up_proj"):
        weights[f"{_MLP}{name}.weight"][:inner] = held.pop(f"{_MLP}{name}.weight")[:inner]
    down = weights[f"{_MLP}down_proj.weight"]
    down[:, inner:] = 0
    down[:, :inner] = held.pop(f"{_MLP}down_proj.weight")[:, :inner]
    weights.update(held)


def _vocabulary_of(config: HeadConfig, source: HeadSource) -> DraftVocabulary:
    draft_ids = torch.arange(config.draft_vocab_size)
    if source.has("d2t"):
        return DraftVocabulary(draft_ids + source.get("d2t", torch.int64), config.vocab_size)
    if config.draft_vocab_size != config.vocab_size:
        raise ConfigError(f"{source.origin} has no d2t and a draft vocabulary of {config.draft_vocab_size}")
    return DraftVocabulary(draft_ids, config.vocab_size)


def _new_config(target: ModelConfig) -> HeadConfig:
    return HeadConfig(
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        num_heads=target.num_heads,
        num_kv_heads=target.num_kv_heads,
        head_dim=target.head_dim,
        intermediate_size=target.intermediate_size,
        vocab_size=target.vocab_size,
        draft_vocab_size=target.vocab_size,
        rms_norm_eps=target.rms_norm_eps,
        rope=target.rope,
        aux_layer_ids=None,
        norm_before_residual=False,
        norm_before_fc=False,
        fc_norm=False,
        norm_output=False,
    )


def _with_sizes(config: HeadConfig, shape: ShapeConfig, vocabulary: DraftVocabulary) -> HeadConfig:
    inner = config.intermediate_size if shape.intermediate_size is None else shape.intermediate_size
    return replace(config, draft_vocab_size=len(vocabulary), intermediate_size=inner)


def _refuse_switches(config: HeadConfig, path: Path) -> None:
    switches = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    on = [name for name in switches if getattr(config, name)]
    if on:
        raise ConfigError(f"--init-from {path} has {', '.join(on)}, which is not trained here; leave it out")


def _refuse_parts(source: HeadSource) -> None:
    parts = [name for name in source.names() if name.endswith(".bias") or ("self_attn" in name and "_norm" in name)]
    if source.has("embed_tokens.weight"):
        parts.append("embed_tokens.weight")
    if parts:
        raise ConfigError(f"--init-from {source.origin} has {', '.join(parts)}, not trained here; leave it out")


def _random(shape: torch.Size, generator: torch.Generator) -> Tensor:
    if len(shape) == 1:
        return torch.ones(shape)
    return torch.randn(shape, generator=generator) / shape[1] ** 0.5
