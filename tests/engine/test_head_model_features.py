"""Features: what the target captures and fuses for a head, and their identity."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import rms_norm
from transformers import LlamaForCausalLM

from engine.head_model import HeadModel
from engine.pages import PageAllocator, PageTable
from engine.plan import StepBuilder
from engine.target_model import TargetModel
from kernels.reference.ops import ReferenceOps
from paceline.tree import DraftTree

HIDDEN, VOCAB, LAYERS, EPS = 32, 60, 6, 1e-5


def _load(head: Path, target: Path) -> HeadModel:
    return HeadModel.load(head, target, dtype=torch.float32, ops=ReferenceOps(), device=torch.device("cpu"))


AUX_CASES = {
    "default layers": {},
    "explicit layers up to the last output": {"eagle_aux_hidden_state_layer_ids": [0, 3, LAYERS - 1]},
    "one norm before fc": {"norm_before_fc": True},
    "a norm for each aux input": {"fc_norm": True},
}


@pytest.mark.parametrize("case", AUX_CASES)
def test_the_targets_features_are_fc_over_the_residual_stream(
    case: str,
    head_target: Path,
    make_head: Callable,
    load_target: Callable,
) -> None:
    reference = LlamaForCausalLM.from_pretrained(head_target)
    edit: dict[str, Tensor] = {}
    if case == "one norm before fc":
        edit["input_norm.weight"] = 1 + 0.3 * torch.randn(3 * HIDDEN)
    if case == "a norm for each aux input":
        edit |= {f"fc_norm.{i}.weight": 1 + 0.3 * torch.randn(HIDDEN) for i in range(3)}
    head = make_head(edit=edit, **AUX_CASES[case])
    tensors = head.tensors
    model = load_target(head_target, head.path)
    assert model.feature_size == HIDDEN
    assert model.feature_id == _load(head.path, head_target).feature_id

    tokens = torch.randint(VOCAB, (12,))
    layers = [1, 4, LAYERS] if case.startswith("explicit") else [2, LAYERS // 2, LAYERS - 3]
    inputs = _layer_inputs(reference, tokens)
    parts = [inputs[layer] for layer in layers]
    if case == "a norm for each aux input":
        parts = [rms_norm(part, (HIDDEN,), tensors[f"fc_norm.{i}.weight"], EPS) for i, part in enumerate(parts)]
    aux = torch.cat(parts, dim=-1)
    if case == "one norm before fc":
        aux = rms_norm(aux, (3 * HIDDEN,), tensors["input_norm.weight"], EPS)
    wanted = aux @ tensors["fc.weight"].T

    features, cached = _prefill_then_decode(model, tokens)
    torch.testing.assert_close(features, wanted, atol=1e-4, rtol=1e-4)
    assert torch.equal(cached, features)


def _layer_inputs(reference: torch.nn.Module, tokens: Tensor) -> list[Tensor]:
    """Entry i: the input of layer i; the last: the output of the last layer, before the final norm."""
    seen: list[Tensor] = []
    hooks = [
        layer.register_forward_pre_hook(lambda _, args: seen.append(args[0][0])) for layer in reference.model.layers
    ]
    hooks.append(reference.model.norm.register_forward_pre_hook(lambda _, args: seen.append(args[0][0])))
    with torch.no_grad():
        reference(tokens[None])
    for hook in hooks:
        hook.remove()
    return seen


def _prefill_then_decode(model: TargetModel, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """All but the last token as a chunk, then the last as a decode: the features, and what the cache holds of them."""
    cache = model.make_cache(8, 4)
    table = PageTable(PageAllocator(8, 4))
    table.reserve(len(tokens))
    builder = StepBuilder(4)
    builder.add_chunk(table, tokens[:-1].numpy().astype(np.int32), 0, sample=False)
    first = model.step(builder.build(), cache).features
    builder = StepBuilder(4)
    builder.add_tree(table, DraftTree.single(int(tokens[-1])), len(tokens) - 1)
    second = model.step(builder.build(), cache).features
    slots = torch.from_numpy(table.slots(0, len(tokens)))
    return torch.cat([first, second]), cache.features[slots]


def test_the_feature_id_changes_with_fc_and_with_the_layers_alone(head_target: Path, make_head: Callable) -> None:
    base = make_head("base")
    other_norm = {"norm.weight": base.tensors["norm.weight"] + 1}
    other_fc = {"fc.weight": base.tensors["fc.weight"] * 2}
    other_layers = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    heads = [base, make_head("norm", edit=other_norm), make_head("fc", edit=other_fc), make_head("ids", **other_layers)]
    models = [_load(head.path, head_target) for head in heads]
    ids = [model.feature_id for model in models]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3
    assert models[0].fingerprint != models[1].fingerprint
