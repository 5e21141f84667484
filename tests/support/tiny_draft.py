"""A tiny random head with its target's embedding, rows for it, and its trees without a service."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from draft_service.config import DraftConfig
from engine.drafter import Drafter, ExtendItem, ProposeParams
from engine.head_model import HeadModel
from engine.pages import PageAllocator, PageTable
from kernels.ops import Ops
from paceline.tree import DraftTree
from paceline.types import MAX_SCRATCH_NODES, SamplingParams, TreeShape
from tests.support.waiting import WAIT_S

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, MLP = 32, 4, 2, 8, 48
VOCAB, DRAFT_VOCAB, CONTEXT = 97, 61, 256
TREE = TreeShape(4, 3, 10)


@dataclass(frozen=True, slots=True)
class TinyDraft:
    """Where a tiny random model and its head lie."""

    model_path: Path
    head_path: Path

    def config(self, **changes: object) -> DraftConfig:
        settings: dict[str, object] = {
            "port": 0,
            "model_path": str(self.model_path),
            "speculative_draft_model_path": str(self.head_path),
            "dtype": "float32",
            "page_size": 4,
            "max_running_requests": 8,
            "max_total_tokens": 2048,
            "drain_timeout_s": WAIT_S,
        }
        return DraftConfig(**{**settings, **changes})

    def head(self, ops: Ops, *, dtype: torch.dtype = torch.float32) -> HeadModel:
        return HeadModel.load(self.head_path, self.model_path, dtype=dtype, ops=ops, device=ops.device)


@dataclass(frozen=True, slots=True)
class Prompt:
    """Rows as a target would send them: random features and tokens."""

    tokens: np.ndarray  # int32 [rows]
    features: torch.Tensor  # [rows, HIDDEN]

    def __getitem__(self, part: slice) -> Prompt:
        return Prompt(self.tokens[part], self.features[part])


@dataclass(slots=True)
class Alone:
    """The drafter without a service: a session's rows at once, and its tree."""

    drafter: Drafter
    allocator: PageAllocator

    def tree(self, prompt: Prompt, shape: TreeShape = TREE, sampling: SamplingParams | None = None) -> DraftTree:
        sampling = sampling or SamplingParams()
        table = PageTable(self.allocator)
        try:
            table.reserve(len(prompt.tokens) + MAX_SCRATCH_NODES)
            params = ProposeParams.of(shape, seed=sampling.seed, temperature=sampling.temperature)
            item = ExtendItem(table=table, base_len=0, tokens=prompt.tokens, features=prompt.features, propose=params)
            (tree,) = self.drafter.extend([item])
        finally:
            table.close()
        assert tree is not None
        return tree


def random_prompt(num_rows: int, seed: int = 0) -> Prompt:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCAB, (num_rows,), generator=generator).int().numpy()
    return Prompt(tokens, torch.randn(num_rows, HIDDEN, generator=generator))


def assert_same_tree(tree: DraftTree, wanted: DraftTree) -> None:
    assert tree.tokens.tolist() == wanted.tokens.tolist()
    assert tree.parents.tolist() == wanted.parents.tolist()


def save_tiny_draft(root: Path, *, head_dim: int = HEAD_DIM) -> TinyDraft:
    """Writes a random target embedding and a random head to ``root``."""
    generator = torch.Generator().manual_seed(3)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.4

    common = {
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": CONTEXT,
        "vocab_size": VOCAB,
    }
    model = {
        "model_type": "llama",
        "num_hidden_layers": 6,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
        "bos_token_id": 1,
    }
    head = {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": DRAFT_VOCAB}
    draft_ids = torch.randperm(VOCAB, generator=generator)[:DRAFT_VOCAB].sort().values
    layer = {
        "hidden_norm": random(HIDDEN) + 1,
        "input_layernorm": random(HIDDEN) + 1,
        "post_attention_layernorm": random(HIDDEN) + 1,
        "self_attn.q_proj": random(HEADS * head_dim, 2 * HIDDEN),
        "self_attn.k_proj": random(KV_HEADS * head_dim, 2 * HIDDEN),
        "self_attn.v_proj": random(KV_HEADS * head_dim, 2 * HIDDEN),
        "self_attn.o_proj": random(HIDDEN, HEADS * head_dim),
        "mlp.gate_proj": random(MLP, HIDDEN),
        "mlp.up_proj": random(MLP, HIDDEN),
        "mlp.down_proj": random(HIDDEN, MLP),
    }
    weights = {f"midlayer.{name}.weight": tensor for name, tensor in layer.items()}
    weights |= {
        "fc.weight": random(HIDDEN, 3 * HIDDEN),
        "norm.weight": random(HIDDEN) + 1,
        "lm_head.weight": random(DRAFT_VOCAB, HIDDEN),
        "d2t": draft_ids - torch.arange(DRAFT_VOCAB),
    }
    for name, config, tensors in (
        ("model", {**common, **model}, {"model.embed_tokens.weight": random(VOCAB, HIDDEN)}),
        ("head", {**common, **head}, weights),
    ):
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps(config))
        save_file(tensors, root / name / "model.safetensors")
    return TinyDraft(root / "model", root / "head")
