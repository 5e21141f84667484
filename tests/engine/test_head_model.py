"""The head against a plain re-implementation over whole sequences, in every published layout."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import rms_norm, silu
from transformers import LlamaConfig, LlamaForCausalLM

from engine.head_model import HeadModel
from engine.pages import PageAllocator, PageTable
from engine.plan import StepBuilder
from engine.target_model import TargetModel
from kernels.reference.ops import ReferenceOps
from paceline.errors import ModelLoadError
from paceline.tree import DraftTree

HIDDEN, HEADS, KV_HEADS, DIM, INNER, VOCAB, DRAFT_VOCAB, LAYERS = 32, 4, 2, 8, 48, 60, 24, 6
EPS, THETA = 1e-5, 500.0
OPS = ReferenceOps()
TARGET = LlamaConfig(
    hidden_size=HIDDEN,
    intermediate_size=INNER,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    num_key_value_heads=KV_HEADS,
    vocab_size=VOCAB,
    max_position_embeddings=96,
    rms_norm_eps=EPS,
    tie_word_embeddings=False,
)
CONFIG: dict[str, object] = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "vocab_size": VOCAB,
    "draft_vocab_size": DRAFT_VOCAB,
    "rms_norm_eps": EPS,
    "rope_theta": THETA,
    "max_position_embeddings": 16,
}


def _tensors(layer: str = "midlayer.") -> dict[str, Tensor]:
    torch.manual_seed(11)
    shapes = {
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (DRAFT_VOCAB, HIDDEN),
        f"{layer}hidden_norm.weight": (HIDDEN,),
        f"{layer}input_layernorm.weight": (HIDDEN,),
        f"{layer}post_attention_layernorm.weight": (HIDDEN,),
        f"{layer}self_attn.q_proj.weight": (HEADS * DIM, 2 * HIDDEN),
        f"{layer}self_attn.k_proj.weight": (KV_HEADS * DIM, 2 * HIDDEN),
        f"{layer}self_attn.v_proj.weight": (KV_HEADS * DIM, 2 * HIDDEN),
        f"{layer}self_attn.o_proj.weight": (HIDDEN, HEADS * DIM),
        f"{layer}mlp.gate_proj.weight": (INNER, HIDDEN),
        f"{layer}mlp.up_proj.weight": (INNER, HIDDEN),
        f"{layer}mlp.down_proj.weight": (HIDDEN, INNER),
    }
    tensors = {name: (1.0 if "norm" in name else 0.0) + 0.25 * torch.randn(shape) for name, shape in shapes.items()}
    ids = torch.randperm(VOCAB)[:DRAFT_VOCAB].sort().values
    tensors["d2t"] = ids - torch.arange(DRAFT_VOCAB)
    tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, True)
    return tensors


def _save(folder: Path, tensors: dict[str, Tensor], **changes: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture
def target(tmp_path: Path, save_random_checkpoint: Callable) -> Path:
    save_random_checkpoint(LlamaForCausalLM, TARGET, tmp_path / "target")
    return tmp_path / "target"


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


def _embedding(target: Path) -> Tensor:
    return load_file(target / "model.safetensors")["model.embed_tokens.weight"]


@pytest.mark.parametrize("norm_before_residual", [False, True])
def test_extends_and_drafts_equal_the_plain_head(norm_before_residual: bool, target: Path, tmp_path: Path) -> None:
    tensors = _tensors()
    model = _load(_save(tmp_path / "head", tensors, norm_before_residual=norm_before_residual), target)
    plain = PlainHead(tensors, _embedding(target), norm_before_residual)
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


def test_norm_output_feeds_the_normed_hidden_state_back(target: Path, tmp_path: Path) -> None:
    tensors = _tensors()
    model = _load(_save(tmp_path / "head", tensors, norm_output=True), target)
    plain = PlainHead(tensors, _embedding(target))
    tokens, features = torch.randint(VOCAB, (5,)), torch.randn(5, HIDDEN)
    hidden = Session(model).extend(tokens, features, 0)
    wanted = plain.normed(plain.hidden(tokens, features))
    torch.testing.assert_close(hidden, wanted, atol=1e-5, rtol=1e-4)
    wanted_logits = wanted @ tensors["lm_head.weight"].T
    torch.testing.assert_close(model.logits(hidden), wanted_logits, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("layer", ["layers.0.", "model.layers.0."])
def test_both_published_names_of_the_layer_load_alike(layer: str, target: Path, tmp_path: Path) -> None:
    tokens, features = torch.randint(VOCAB, (6,)), torch.randn(6, HIDDEN)
    results = []
    for prefix in ("midlayer.", layer):
        model = _load(_save(tmp_path / prefix, _tensors(prefix)), target)
        results.append(Session(model).extend(tokens, features, 0))
    assert torch.equal(*results)


def test_draft_ids_become_target_ids_by_adding_d2t(target: Path, tmp_path: Path) -> None:
    tensors = _tensors()
    model = _load(_save(tmp_path / "head", tensors), target)
    wanted = torch.arange(DRAFT_VOCAB) + tensors["d2t"]
    assert torch.equal(model.target_ids(torch.arange(DRAFT_VOCAB)), wanted)
    assert bool(tensors["t2d"][wanted].all())


@pytest.mark.parametrize("tied", [False, True])
def test_a_head_without_lm_head_takes_the_targets_rows(
    tied: bool, tmp_path: Path, save_random_checkpoint: Callable
) -> None:
    config = LlamaConfig(**{**TARGET.to_dict(), "tie_word_embeddings": tied})
    save_random_checkpoint(LlamaForCausalLM, config, tmp_path / "target")
    tensors = _tensors()
    del tensors["lm_head.weight"]
    model = _load(_save(tmp_path / "head", tensors, tie_word_embeddings=tied), tmp_path / "target")
    weights = load_file(tmp_path / "target" / "model.safetensors")
    rows = weights["model.embed_tokens.weight" if tied else "lm_head.weight"]
    hidden = torch.randn(2, HIDDEN)
    wanted = PlainHead(tensors, rows).normed(hidden) @ rows[torch.arange(DRAFT_VOCAB) + tensors["d2t"]].T
    torch.testing.assert_close(model.logits(hidden), wanted)


def test_an_embedding_of_its_own_comes_before_the_targets(target: Path, tmp_path: Path) -> None:
    tensors = {**_tensors(), "embed_tokens.weight": torch.randn(VOCAB, HIDDEN)}
    model = _load(_save(tmp_path / "head", tensors), target)
    tokens, features = torch.randint(VOCAB, (4,)), torch.randn(4, HIDDEN)
    wanted = PlainHead(tensors, tensors["embed_tokens.weight"]).hidden(tokens, features)
    torch.testing.assert_close(Session(model).extend(tokens, features, 0), wanted, atol=1e-5, rtol=1e-4)


def test_positions_past_the_heads_own_short_context_are_the_targets(target: Path, tmp_path: Path) -> None:
    tensors = _tensors()
    model = _load(_save(tmp_path / "head", tensors), target)
    tokens, features = torch.randint(VOCAB, (40,)), torch.randn(40, HIDDEN)
    wanted = PlainHead(tensors, _embedding(target)).hidden(tokens, features)
    torch.testing.assert_close(Session(model).extend(tokens, features, 0), wanted, atol=1e-5, rtol=1e-4)


AUX_CASES = {
    "default layers": {},
    "explicit layers up to the last output": {"eagle_aux_hidden_state_layer_ids": [0, 3, LAYERS - 1]},
    "one norm before fc": {"norm_before_fc": True},
    "a norm for each aux input": {"fc_norm": True},
}


@pytest.mark.parametrize("case", AUX_CASES)
def test_the_targets_features_are_fc_over_the_residual_stream(
    case: str, tmp_path: Path, load_target: Callable, save_random_checkpoint: Callable
) -> None:
    reference = save_random_checkpoint(LlamaForCausalLM, TARGET, tmp_path / "target")
    tensors = _tensors()
    if case == "one norm before fc":
        tensors["input_norm.weight"] = 1 + 0.3 * torch.randn(3 * HIDDEN)
    if case == "a norm for each aux input":
        tensors |= {f"fc_norm.{i}.weight": 1 + 0.3 * torch.randn(HIDDEN) for i in range(3)}
    head = _save(tmp_path / "head", tensors, **AUX_CASES[case])
    model = load_target(tmp_path / "target", head)
    assert model.feature_size == HIDDEN
    assert model.feature_id == _load(head, tmp_path / "target").feature_id

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


def test_the_feature_id_changes_with_fc_and_with_the_layers_alone(target: Path, tmp_path: Path) -> None:
    tensors = _tensors()
    base = _load(_save(tmp_path / "base", tensors), target)
    other_layer = {**tensors, "norm.weight": tensors["norm.weight"] + 1}
    retrained = _load(_save(tmp_path / "retrained", other_layer), target)
    other_fc = {**tensors, "fc.weight": tensors["fc.weight"] * 2}
    refused = _load(_save(tmp_path / "fc", other_fc), target)
    moved = _load(_save(tmp_path / "moved", tensors, eagle_aux_hidden_state_layer_ids=[0, 1, 2]), target)
    assert base.feature_id == retrained.feature_id
    assert base.fingerprint != retrained.fingerprint
    assert len({base.feature_id, refused.feature_id, moved.feature_id}) == 3


def _without(name: str) -> dict[str, Tensor]:
    return {other: tensor for other, tensor in _tensors().items() if other != name}


@pytest.mark.parametrize(
    ("tensors", "changes", "message"),
    [
        (_without("d2t"), {}, "has no d2t tensor, and its draft vocabulary of 24 is not the target's of 60"),
        (_tensors(), {"hidden_size": 64}, "is for a target of hidden size 64; this target has 32"),
        (_tensors(), {"target_hidden_size": 48}, "is for a target of hidden size 48; this target has 32"),
        (_tensors(), {"draft_vocab_size": 20}, r"d2t has shape \[24\]; the head's draft_vocab_size is 20"),
        ({**_tensors(), "d2t": torch.full((24,), 40)}, {}, "d2t leads to target ids 40 to 63; the target has 60"),
        ({**_tensors(), "input_norm.weight": torch.ones(96)}, {}, r"gives no use: input_norm\.weight"),
        ({**_tensors(), "layers.1.mlp.up_proj.weight": torch.ones(1)}, {}, r"no use: layers\.1\.mlp\.up_proj\.weight"),
        (_without("midlayer.hidden_norm.weight"), {}, r"no tensor midlayer\.hidden_norm\.weight"),
        (_tensors(), {"intermediate_size": 40}, r"gate_proj\.weight has shape \[48, 32\], the config says \[40, 32\]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_head_that_does_not_fit_is_refused(
    tensors: dict[str, Tensor],
    changes: dict[str, object],
    message: str,
    target: Path,
    tmp_path: Path,
) -> None:
    head = _save(tmp_path / "head", tensors, **changes)
    with pytest.raises(ModelLoadError, match=message):
        _load(head, target)


@pytest.mark.parametrize(
    ("tensors", "changes", "message"),
    [
        (_without("fc.weight"), {}, r"no tensor fc\.weight"),
        (_tensors(), {"norm_before_fc": True}, r"no tensor input_norm\.weight"),
        (_tensors(), {"fc_norm": True}, r"no tensor fc_norm\.0\.weight"),
        (_tensors(), {"hidden_size": 64}, "is for a target of hidden size 64; this target has 32"),
        (
            _tensors(),
            {"hidden_size": 64, "target_hidden_size": 32},
            r"fc\.weight has shape \[32, 96\], the config says \[64",
        ),
        (
            _tensors(),
            {"eagle_aux_hidden_state_layer_ids": [1, 2, 6]},
            r"target layers \(2, 3, 7\); the target has 6 layers",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_head_whose_features_do_not_fit_is_refused_by_the_target(
    tensors: dict[str, Tensor],
    changes: dict[str, object],
    message: str,
    target: Path,
    tmp_path: Path,
    load_target: Callable,
) -> None:
    head = _save(tmp_path / "head", tensors, **changes)
    with pytest.raises(ModelLoadError, match=message):
        load_target(target, head)


def test_a_truncated_head_is_refused_by_both_services(target: Path, tmp_path: Path, load_target: Callable) -> None:
    head = _save(tmp_path / "head", _tensors())
    path = head / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    for load in (lambda: _load(head, target), lambda: load_target(target, head)):
        with pytest.raises(ModelLoadError, match=r"head.model\.safetensors \(\d+ bytes\) is truncated"):
            load()


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
