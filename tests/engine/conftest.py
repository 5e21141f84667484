"""Random checkpoints that transformers writes, and a schedule that drives a model through every kind of row."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from engine.pages import PageAllocator, PageTable
from engine.plan import StepBuilder, compaction
from engine.target_model import TargetModel
from engine.tp import TpGroup
from kernels.reference.ops import ReferenceOps
from paceline.tree import DraftTree

if TYPE_CHECKING:  # its import takes seconds, which most tests of this room need not wait for
    from transformers import LlamaConfig

CPU = torch.device("cpu")
PAGE_SIZE = 4
DRAFT_VOCAB = 24
HEAD_CONFIG: dict[str, object] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 60,
    "draft_vocab_size": DRAFT_VOCAB,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500.0,
    "max_position_embeddings": 16,
}


@dataclass(frozen=True, slots=True)
class PathLogits:
    """The logits after a path of tokens."""

    path: list[int]
    logits: torch.Tensor  # [V]


@dataclass(frozen=True, slots=True)
class HeadFiles:
    """A random head that was saved under published names."""

    path: Path
    tensors: dict[str, torch.Tensor]


@pytest.fixture
def head_target_config() -> LlamaConfig:
    """A target that the random heads fit: 6 layers, hidden size 32, 60 tokens, 96 positions."""
    from transformers import LlamaConfig

    sizes = {**HEAD_CONFIG, "num_hidden_layers": 6, "max_position_embeddings": 96}
    return LlamaConfig(**sizes, tie_word_embeddings=False)


@pytest.fixture
def head_target(tmp_path: Path, head_target_config: LlamaConfig, save_random_checkpoint: Callable) -> Path:
    from transformers import LlamaForCausalLM

    save_random_checkpoint(LlamaForCausalLM, head_target_config, tmp_path / "target")
    return tmp_path / "target"


@pytest.fixture
def make_head(tmp_path: Path) -> Callable[..., HeadFiles]:
    """edit: tensors to replace, add, or (None) leave out; the keywords change config.json."""

    def make(
        name: str = "head",
        *,
        layer: str = "midlayer.",
        edit: Mapping[str, torch.Tensor | None] | None = None,
        **config: object,
    ) -> HeadFiles:
        edited = {**_head_tensors(layer), **(edit or {})}
        tensors = {tensor_name: tensor for tensor_name, tensor in edited.items() if tensor is not None}
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({**HEAD_CONFIG, **config}))
        save_file(tensors, folder / "model.safetensors")
        return HeadFiles(folder, tensors)

    return make


@pytest.fixture
def load_target() -> Callable[..., TargetModel]:
    def load(path: Path, head_path: Path | None = None) -> TargetModel:
        return TargetModel.load(
            path, head_path=head_path, dtype=torch.float32, ops=ReferenceOps(), device=CPU, tp=TpGroup()
        )

    return load


@pytest.fixture(scope="session")
def default_target() -> TargetModel:
    """The default model in fp32 with its head's fc; dequantising it takes seconds, so it is loaded once."""
    models = Path(__file__).parents[2] / "models"
    if not list((models / "smollm2-135m").glob("*.gguf")):
        pytest.skip("the default model is not fetched: make setup")
    return TargetModel.load(
        models / "smollm2-135m",
        head_path=models / "smollm2-135m-eagle3",
        dtype=torch.float32,
        ops=ReferenceOps(),
        device=CPU,
        tp=TpGroup(),
    )


@pytest.fixture
def save_random_checkpoint() -> Callable[..., torch.nn.Module]:
    """Saves transformers' model of a config with weights large enough that every part of it shows in the logits."""

    def save(model_class: type, config: object, folder: Path, **kwargs: object) -> torch.nn.Module:
        torch.manual_seed(7)
        model = model_class(config).float().eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "norm" in name:
                    weight.copy_(1 + 0.3 * torch.randn_like(weight))
                else:
                    weight.copy_(0.15 * torch.randn_like(weight))
        model.save_pretrained(folder, **kwargs)
        return model

    return save


@pytest.fixture
def run_schedule() -> Callable[[TargetModel], list[PathLogits]]:
    return _run_schedule


@pytest.fixture
def assert_equals_transformers(run_schedule: Callable[[TargetModel], list[PathLogits]]) -> Callable[..., None]:
    def check(model: TargetModel, reference: torch.nn.Module) -> None:
        results = run_schedule(model)
        assert len(results) == 14
        for result in results:
            with torch.no_grad():
                wanted = reference(torch.tensor([result.path])).logits[0, -1]
            torch.testing.assert_close(result.logits, wanted, atol=2e-4, rtol=1e-4)

    return check


def _run_schedule(model: TargetModel) -> list[PathLogits]:
    """Two requests: chunked prefill, single decodes and trees in shared steps, and compaction of an accepted path."""
    generator = np.random.default_rng(3)
    vocab = model.config.vocab_size
    first, second = (generator.integers(0, vocab, size).tolist() for size in (23, 9))
    tree = DraftTree(
        generator.choice(vocab, 6, replace=False).astype(np.int32), np.array([-1, 0, 0, 1, 2, 4], np.int32)
    )
    allocator = PageAllocator(32, PAGE_SIZE)
    cache = model.make_cache(32, PAGE_SIZE)
    tables = [PageTable(allocator), PageTable(allocator)]
    for table in (tables[0], tables[1], tables[0]):  # interleaved, so that no sequence's pages are adjacent
        table.reserve(table.capacity + 16)
    tables[0].reserve(40)
    results: list[PathLogits] = []

    def step(builder: StepBuilder, paths: list[list[int]]) -> None:
        output = model.step(builder.build(), cache)
        assert output.logits is not None and output.logits.shape == (len(paths), vocab)
        results.extend(PathLogits(path, row) for path, row in zip(paths, output.logits, strict=True))

    builder = StepBuilder(PAGE_SIZE)
    builder.add_chunk(tables[0], np.array(first[:10], np.int32), 0, sample=False)
    step(builder, [])

    builder = StepBuilder(PAGE_SIZE)
    builder.add_chunk(tables[0], np.array(first[10:17], np.int32), 10, sample=False)
    builder.add_chunk(tables[1], np.array(second, np.int32), 0, sample=True)
    step(builder, [second])

    builder = StepBuilder(PAGE_SIZE)
    builder.add_tree(tables[1], DraftTree.single(5), len(second))
    builder.add_chunk(tables[0], np.array(first[17:], np.int32), 17, sample=True)
    step(builder, [[*second, 5], first])

    builder = StepBuilder(PAGE_SIZE)
    builder.add_tree(tables[0], tree, len(first))
    builder.add_tree(tables[1], DraftTree.chain([3, 1, 4]), len(second) + 1)
    chain = [[*second, 5, 3, 1, 4][: len(second) + 2 + depth] for depth in range(3)]
    step(builder, [*(first + _tokens_to(tree, node) for node in range(6)), *chain])

    accepted = np.array([0, 2, 4, 5])
    builder = StepBuilder(PAGE_SIZE)
    builder.move(*compaction(tables[0], len(first), accepted))
    builder.add_tree(tables[0], DraftTree.single(2), len(first) + len(accepted))
    builder.add_tree(tables[1], DraftTree.single(6), len(second) + 4)
    step(builder, [first + tree.tokens[accepted].tolist() + [2], [*second, 5, 3, 1, 4, 6]])
    return results


def _head_tensors(layer: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(11)
    hidden, inner, vocab = 32, 48, 60
    shapes = {
        "fc.weight": (hidden, 3 * hidden),
        "norm.weight": (hidden,),
        "lm_head.weight": (DRAFT_VOCAB, hidden),
        f"{layer}hidden_norm.weight": (hidden,),
        f"{layer}input_layernorm.weight": (hidden,),
        f"{layer}post_attention_layernorm.weight": (hidden,),
        f"{layer}self_attn.q_proj.weight": (32, 2 * hidden),
        f"{layer}self_attn.k_proj.weight": (16, 2 * hidden),
        f"{layer}self_attn.v_proj.weight": (16, 2 * hidden),
        f"{layer}self_attn.o_proj.weight": (hidden, 32),
        f"{layer}mlp.gate_proj.weight": (inner, hidden),
        f"{layer}mlp.up_proj.weight": (inner, hidden),
        f"{layer}mlp.down_proj.weight": (hidden, inner),
    }
    tensors = {name: (1.0 if "norm" in name else 0.0) + 0.25 * torch.randn(shape) for name, shape in shapes.items()}
    ids = torch.randperm(vocab)[:DRAFT_VOCAB].sort().values
    tensors["d2t"] = ids - torch.arange(DRAFT_VOCAB)
    tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, ids, True)
    return tensors


def _tokens_to(tree: DraftTree, node: int) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.insert(0, int(tree.tokens[node]))
        node = int(tree.parents[node])
    return path
