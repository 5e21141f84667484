"""The head against a plain re-implementation over whole sequences, under every published name and switch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import rms_norm, silu
from transformers import LlamaConfig, LlamaForCausalLM

from engine.head_model import HeadModel
from engine.pages import PageAllocator, PageTable
from engine.plan import StepBuilder
from engine.target_model import TargetModel
from kernels.reference.ops import ReferenceOps

HIDDEN, HEADS, KV_HEADS, DIM, VOCAB, DRAFT_VOCAB = 32, 4, 2, 8, 60, 24
EPS, THETA = 1e-5, 500.0
OPS = ReferenceOps()


def _load(head: Path, target: Path) -> HeadModel:
    return HeadModel.load(head, target, dtype=torch.float32, ops=OPS, device=torch.device("cpu"))


@dataclass(frozen=True)
class PlainHead:
    """EAGLE-3's layer as the paper and the published code have it, one whole causal sequence at a time."""

    weights: dict[str, Tensor]
    embedding: Tensor
    norm_before_residual: bool = False

    def hidden(self, tokens: Tensor, features: Tensor) -> Tensor:
        """tokens [n]; features [n, H] -> [n, H] before the final norm; row j at RoPE position j."""
        w = {name.removeprefix("midlayer."): weight for name, weight in self.weights.items()}
        normed = rms_norm(features, (HIDDEN,), w["hidden_norm.weight"], EPS)
        token_part = rms_norm(self.embedding[tokens], (HIDDEN,), w["input_layernorm.weight"], EPS)
        x = torch.cat([token_part, normed], dim=-1)
        n = len(tokens)
        q = _rotate((x @ w["self_attn.q_proj.weight"].T).view(n, HEADS, DIM))
        k = _rotate((x @ w["self_attn.k_proj.weight"].T).view(n, KV_HEADS, DIM))
        v = (x @ w["self_attn.v_proj.weight"].T).view(n, KV_HEADS, DIM)
        heads = []
        for head in range(HEADS):
            group = head // (HEADS // KV_HEADS)
            scores = q[:, head] @ k[:, group].T / DIM**0.5
            scores = scores.masked_fill(~torch.ones(n, n).tril().bool(), float("-inf"))
            heads.append(scores.softmax(-1) @ v[:, group])
        residual = normed if self.norm_before_residual else features
        residual = residual + torch.cat(heads, dim=-1) @ w["self_attn.o_proj.weight"].T
        x = rms_norm(residual, (HIDDEN,), w["post_attention_layernorm.weight"], EPS)
        inner = silu(x @ w["mlp.gate_proj.weight"].T) * (x @ w["mlp.up_proj.weight"].T)
        return residual + inner @ w["mlp.down_proj.weight"].T

    def normed(self, hidden: Tensor) -> Tensor:
        return rms_norm(hidden, (HIDDEN,), self.weights["norm.weight"], EPS)


def _rotate(x: Tensor) -> Tensor:
    """Row j at position j: pairs (i, i + d/2) turned by j / theta^(2i / d)."""
    angles = torch.arange(len(x))[:, None] / THETA ** (torch.arange(0, DIM, 2) / DIM)
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]
    pairs = torch.complex(*x.chunk(2, dim=-1)) * turn
    return torch.cat([pairs.real, pairs.imag], dim=-1)


class Session:
    """One sequence of head rows over a paged cache whose pages are not adjacent."""

    def __init__(self, model: HeadModel) -> None:
        self.model = model
        self.cache = model.make_cache(16, 4)
        allocator = PageAllocator(16, 4)
        allocator.alloc(3)
        self.table = PageTable(allocator)
        self.table.reserve(48)

    def extend(self, tokens: Tensor, hidden: Tensor, start: int) -> Tensor:
        builder = StepBuilder(4)
        builder.add_chunk(self.table, tokens.numpy().astype(np.int32), start, sample=False)
        plan = builder.build()
        positions, slots = (torch.from_numpy(a.astype(np.int64)) for a in (plan.positions, plan.slots))
        return self.model.forward(tokens, hidden, positions, slots, OPS.plan_attention(plan.attention), self.cache)


def _embedding(head_target: Path) -> Tensor:
    return load_file(head_target / "model.safetensors")["model.embed_tokens.weight"]


@pytest.mark.parametrize("norm_before_residual", [False, True])
def test_extends_and_drafts_equal_the_plain_head(
    norm_before_residual: bool, head_target: Path, make_head: Callable
) -> None:
    head = make_head(norm_before_residual=norm_before_residual)
    tensors = head.tensors
    model = _load(head.path, head_target)
    plain = PlainHead(tensors, _embedding(head_target), norm_before_residual)
    tokens, features = torch.randint(VOCAB, (21,)), torch.randn(21, HIDDEN)
    before = features.clone()
    session = Session(model)
    parts = [session.extend(tokens[a:b], features[a:b], a) for a, b in ((0, 9), (9, 20), (20, 21))]
    wanted = plain.hidden(tokens, features)
    torch.testing.assert_close(torch.cat(parts), wanted, atol=1e-5, rtol=1e-4)
    wanted_logits = plain.normed(wanted) @ tensors["lm_head.weight"].T
    torch.testing.assert_close(model.logits(torch.cat(parts)), wanted_logits, atol=1e-5, rtol=1e-4)
    assert torch.equal(features, before)

    token = torch.tensor([3])
    drafted = session.extend(token, parts[-1], 21)
    again = plain.hidden(torch.cat([tokens, token]), torch.cat([features, wanted[-1:]]))[-1:]
    torch.testing.assert_close(drafted, again, atol=1e-5, rtol=1e-4)


def test_norm_output_feeds_the_normed_hidden_state_back(head_target: Path, make_head: Callable) -> None:
    head = make_head(norm_output=True)
    tensors = head.tensors
    model = _load(head.path, head_target)
    plain = PlainHead(tensors, _embedding(head_target))
    tokens, features = torch.randint(VOCAB, (5,)), torch.randn(5, HIDDEN)
    hidden = Session(model).extend(tokens, features, 0)
    wanted = plain.normed(plain.hidden(tokens, features))
    torch.testing.assert_close(hidden, wanted, atol=1e-5, rtol=1e-4)
    wanted_logits = wanted @ tensors["lm_head.weight"].T
    torch.testing.assert_close(model.logits(hidden), wanted_logits, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("layer", ["layers.0.", "model.layers.0."])
def test_both_published_names_of_the_layer_load_alike(layer: str, head_target: Path, make_head: Callable) -> None:
    tokens, features = torch.randint(VOCAB, (6,)), torch.randn(6, HIDDEN)
    results = []
    for prefix in ("midlayer.", layer):
        model = _load(make_head(prefix, layer=prefix).path, head_target)
        results.append(Session(model).extend(tokens, features, 0))
    assert torch.equal(*results)


def test_draft_ids_become_target_ids_by_adding_d2t(head_target: Path, make_head: Callable) -> None:
    head = make_head()
    tensors = head.tensors
    model = _load(head.path, head_target)
    wanted = torch.arange(DRAFT_VOCAB) + tensors["d2t"]
    assert torch.equal(model.target_ids(torch.arange(DRAFT_VOCAB)), wanted)
    assert bool(tensors["t2d"][wanted].all())


@pytest.mark.parametrize("tied", [False, True])
def test_a_head_without_lm_head_takes_the_targets_rows(
    tied: bool, tmp_path: Path, head_target_config: LlamaConfig, save_random_checkpoint: Callable, make_head: Callable
) -> None:
    head_target_config.tie_word_embeddings = tied
    save_random_checkpoint(LlamaForCausalLM, head_target_config, tmp_path / "target")
    head = make_head(edit={"lm_head.weight": None}, tie_word_embeddings=tied)
    model = _load(head.path, tmp_path / "target")
    weights = load_file(tmp_path / "target" / "model.safetensors")
    rows = weights["model.embed_tokens.weight" if tied else "lm_head.weight"]
    hidden = torch.randn(2, HIDDEN)
    target_ids = torch.arange(DRAFT_VOCAB) + head.tensors["d2t"]
    wanted = PlainHead(head.tensors, rows).normed(hidden) @ rows[target_ids].T
    torch.testing.assert_close(model.logits(hidden), wanted)


def test_an_embedding_of_its_own_comes_before_the_targets(head_target: Path, make_head: Callable) -> None:
    head = make_head(edit={"embed_tokens.weight": torch.randn(VOCAB, HIDDEN)})
    tokens, features = torch.randint(VOCAB, (4,)), torch.randn(4, HIDDEN)
    wanted = PlainHead(head.tensors, head.tensors["embed_tokens.weight"]).hidden(tokens, features)
    hidden = Session(_load(head.path, head_target)).extend(tokens, features, 0)
    torch.testing.assert_close(hidden, wanted, atol=1e-5, rtol=1e-4)


def test_positions_past_the_heads_own_short_context_are_the_targets(head_target: Path, make_head: Callable) -> None:
    head = make_head()
    tokens, features = torch.randint(VOCAB, (40,)), torch.randn(40, HIDDEN)
    wanted = PlainHead(head.tensors, _embedding(head_target)).hidden(tokens, features)
    hidden = Session(_load(head.path, head_target)).extend(tokens, features, 0)
    torch.testing.assert_close(hidden, wanted, atol=1e-5, rtol=1e-4)


def test_the_default_pair_predicts_the_targets_own_next_token(default_target: TargetModel) -> None:
    target = default_target
    models = Path(__file__).parents[2] / "models"
    head = _load(models / "smollm2-135m-eagle3", models / "smollm2-135m")
    tokens = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
    cache = target.make_cache(4, 16)
    table = PageTable(PageAllocator(4, 16))
    table.reserve(64)
    features: list[Tensor] = []
    start, prompt_len = 0, len(tokens)
    while len(tokens) < prompt_len + 8:
        builder = StepBuilder(16)
        builder.add_chunk(table, np.array(tokens[start:], np.int32), start, sample=True)
        start = len(tokens)
        output = target.step(builder.build(), cache)
        features.append(output.features)
        tokens.append(int(output.logits.argmax()))
    rows = torch.cat(features)
    hidden = Session(head).extend(torch.tensor(tokens[1:]), rows, 0)
    guesses = head.target_ids(head.logits(hidden).argmax(-1))
    hits = [
        int(guess) == token for guess, token in zip(guesses[prompt_len - 1 : -1], tokens[prompt_len + 1 :], strict=True)
    ]
    assert sum(hits) >= 4
