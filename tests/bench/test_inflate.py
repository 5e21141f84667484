"""An inflated pair computes what the small one does, written or built on load, whole or shared by ranks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.chat_prompt import ChatPrompt
from bench.inflate import main
from engine.config import load_head_config, load_model_config
from engine.drafter import Drafter, ExtendItem, ProposeParams
from engine.head_model import HeadModel
from engine.pages import PageAllocator, PageTable
from engine.plan import StepBuilder, StepPlan
from engine.reference_loop import InProcess
from engine.target_model import StepOutput, TargetModel
from engine.tp import TpGroup
from engine.weights import fingerprint, open_weights
from engine.weights.loader import WeightLoader
from kernels.backends import load_ops
from paceline.defaults import DEFAULT_HEAD_PATH, DEFAULT_MODEL_PATH
from paceline.tree import DraftTree
from paceline.types import SamplingParams, TreeShape
from tests.support.tiny_draft import HIDDEN, VOCAB
from tests.support.tiny_target import NUM_LAYERS, save_tiny_target

CPU = torch.device("cpu")
SIZES = {"hidden-size": 80, "layers": 11, "num-heads": 12, "num-kv-heads": 3, "head-dim": 16, "intermediate-size": 100}
PAGE_SIZE, NUM_PAGES = 4, 48
TREE = ProposeParams(4, 3, 10, seed=0, temperature=0.0)


@dataclass(frozen=True, slots=True)
class Pair:
    target: Path
    head: Path


@dataclass(frozen=True, slots=True)
class Computed:
    """Of one prompt: logits and features of the target, the head's tree and draft logits."""

    logits: torch.Tensor  # [prompt, V]
    features: torch.Tensor  # [prompt, Hd]
    tree: DraftTree
    draft_logits: torch.Tensor  # [prompt, draft vocabulary]


def inflate(pair: Pair, out: Path, *flags: str, **sizes: int) -> int:
    sizes = {**SIZES, **{name.replace("_", "-"): size for name, size in sizes.items()}}
    paths = [f"--model-path={pair.target}", f"--speculative-draft-model-path={pair.head}"]
    words = [f"--{name}={size}" for name, size in sizes.items()]
    return main([str(out), "--shape=custom", "--dtype=float32", *paths, *words, *flags])


def chain_of(prompt: np.ndarray) -> tuple[PageTable, StepPlan]:
    """A step with a logit at each of the prompt's tokens."""
    table = PageTable(PageAllocator(NUM_PAGES, PAGE_SIZE))
    table.reserve(len(prompt) + 64)
    builder = StepBuilder(PAGE_SIZE)
    builder.add_tree(table, DraftTree.chain(prompt.tolist()), 0)
    return table, builder.build()


def target_output(target: TargetModel, prompt: np.ndarray) -> StepOutput:
    return target.step(chain_of(prompt)[1], target.make_cache(NUM_PAGES, PAGE_SIZE))


def compute(pair: Pair, backend: str = "reference") -> Computed:
    ops = load_ops(backend, CPU, num_threads=1)
    settings = {"dtype": torch.float32, "ops": ops, "device": CPU}
    target = TargetModel.load(pair.target, head_path=pair.head, tp=TpGroup(), **settings)
    head = HeadModel.load(pair.head, pair.target, **settings)
    prompt = np.random.default_rng(1).integers(0, VOCAB, 30).astype(np.int32)
    output = target_output(target, prompt)
    assert output.logits is not None and output.features is not None
    table, plan = chain_of(prompt)
    cache = head.make_cache(NUM_PAGES, PAGE_SIZE)
    next_tokens = np.append(prompt[1:], 7).astype(np.int32)
    (tree,) = Drafter(head, cache, max_rows=256).extend([ExtendItem(table, 0, next_tokens, output.features, TREE)])
    assert tree is not None
    rows = [torch.from_numpy(array).long() for array in (next_tokens, plan.positions, plan.slots)]
    attention = head.ops.plan_attention(plan.attention)
    hidden = head.forward(rows[0], output.features, rows[1], rows[2], attention, cache)
    return Computed(output.logits.clone(), output.features.clone(), tree, head.logits(hidden))


def assert_equal_sums(given: torch.Tensor, wanted: torch.Tensor) -> None:
    """Up to the rounding of fp32 sums of another order, which goes with the largest of the terms."""
    torch.testing.assert_close(given, wanted, atol=2e-5 * wanted.abs().max().item(), rtol=0)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    tiny = save_tiny_target(tmp_path_factory.mktemp("small"))
    return Pair(tiny.model_path, tiny.head_path)


@pytest.fixture(scope="module", params=["--lazy", "--no-lazy"])
def large(request, small, tmp_path_factory):
    out = tmp_path_factory.mktemp("large")
    assert inflate(small, out, request.param) == 0
    return Pair(out / "target", out / "head")


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_logits_features_and_trees_are_those_of_the_small_pair(small, large, backend):
    wanted, given = compute(small, backend), compute(large, backend)
    assert_equal_sums(given.logits, wanted.logits)
    assert torch.equal(given.logits.argmax(-1), wanted.logits.argmax(-1))
    assert_equal_sums(given.features[:, :HIDDEN], wanted.features)
    assert given.features[:, HIDDEN:].count_nonzero() == 0
    assert_equal_sums(given.draft_logits, wanted.draft_logits)
    assert given.tree.tokens.tolist() == wanted.tree.tokens.tolist()
    assert given.tree.parents.tolist() == wanted.tree.parents.tolist()


@pytest.mark.gpu
def test_a_gpu_computes_the_weights_that_it_loads(small, large):
    device = torch.device("cuda")
    prompt = np.random.default_rng(1).integers(0, VOCAB, 30).astype(np.int32)
    outputs = []
    for pair in (small, large):
        ops = load_ops("auto", device)
        target = TargetModel.load(
            pair.target, head_path=pair.head, dtype=torch.float32, ops=ops, device=device, tp=TpGroup()
        )
        outputs.append(target_output(target, prompt))
        head = HeadModel.load(pair.head, pair.target, dtype=torch.float32, ops=ops, device=device)
        assert head.feature_id == target.feature_id
    assert_equal_sums(outputs[1].logits.cpu(), outputs[0].logits.cpu())
    assert_equal_sums(outputs[1].features[:, :HIDDEN].cpu(), outputs[0].features.cpu())


def test_every_group_of_heads_and_every_layer_is_as_large_as_asked(large):
    config, head = load_model_config(large.target), load_head_config(large.head)
    assert (config.hidden_size, config.num_layers, config.num_heads, config.num_kv_heads) == (80, 11, 12, 3)
    assert (head.hidden_size, head.target_hidden_size, head.head_dim, head.intermediate_size) == (80, 80, 16, 100)
    source = open_weights(large.target)
    assert source.shape("model.layers.10.self_attn.q_proj.weight") == (12 * 16, 80)
    assert source.shape("model.layers.10.mlp.down_proj.weight") == (80, 100)


def test_what_the_small_model_lacks_is_random_and_adds_nothing(large):
    source = open_weights(large.target)
    used = {layer * 11 // NUM_LAYERS for layer in range(NUM_LAYERS)}
    for layer in set(range(11)) - used:
        prefix = f"model.layers.{layer}."
        assert source.get(f"{prefix}mlp.gate_proj.weight").count_nonzero() > 7900
        assert source.get(f"{prefix}mlp.down_proj.weight").count_nonzero() == 0
        assert source.get(f"{prefix}self_attn.o_proj.weight").count_nonzero() == 0


def test_a_lazy_folder_holds_what_a_written_one_does(small, tmp_path):
    assert inflate(small, tmp_path / "lazy", "--lazy", "--seed=5") == 0
    assert inflate(small, tmp_path / "written", "--seed=5") == 0
    for part in ("target", "head"):
        lazy, written = open_weights(tmp_path / "lazy" / part), open_weights(tmp_path / "written" / part)
        assert lazy.names() == written.names()
        for name in lazy.names():
            assert torch.equal(lazy.get(name), written.get(name)), name
        assert not list((tmp_path / "lazy" / part).glob("*.safetensors"))


def test_ranks_share_the_tensors_that_one_rank_has_whole(large):
    source = open_weights(large.target)
    whole = WeightLoader(source, dtype=torch.float32, device=CPU, tp=TpGroup())
    ranks = [WeightLoader(source, dtype=torch.float32, device=CPU, tp=TpGroup(rank, 3)) for rank in range(3)]
    q_proj, o_proj = (f"model.layers.2.self_attn.{name}_proj.weight" for name in "qo")
    rows = [loader.rows([(q_proj, 192)], 80) for loader in ranks]
    assert torch.equal(torch.cat(rows), whole.rows([(q_proj, 192)], 80))
    columns = [loader.columns(o_proj, 80, 192) for loader in ranks]
    assert torch.equal(torch.cat(columns, dim=1), whole.columns(o_proj, 80, 192))


def test_a_fingerprint_tells_shapes_and_seeds_apart(small, tmp_path):
    one, two = ("--seed=1",), ("--seed=2",)
    variants = {"one": one, "two": two, "deep": (*one, "--layers=12"), "again": one}
    for name, flags in variants.items():
        assert inflate(small, tmp_path / name, "--lazy", *flags) == 0
    prints = {name: fingerprint(tmp_path / name / "target") for name in variants}
    assert prints["again"] == prints["one"]
    assert len(set(prints.values())) == 3


def test_a_folder_of_its_own_is_made_anew_and_another_is_left_alone(small, tmp_path, capsys):
    assert inflate(small, tmp_path, "--lazy") == 0
    assert inflate(small, tmp_path, "--lazy", layers=12) == 0
    assert load_model_config(tmp_path / "target").num_layers == 12
    (tmp_path / "target" / "inflation.json").unlink()
    assert inflate(small, tmp_path, "--lazy") == 2
    assert "it was not made here" in capsys.readouterr().err
    assert (tmp_path / "target" / "config.json").is_file()


def test_a_file_in_the_place_of_the_folder_is_named(small, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert inflate(small, tmp_path / "file", "--lazy") == 2
    assert "/file is a file; name a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"layers": 5}, "--num-layers is 5; the small model has 6"),
        ({"hidden_size": 16}, "--hidden-size is 16"),
        ({"head_dim": 12}, "--head-dim is 12; it must be a multiple of the small 8"),
        ({"num_heads": 5}, "--num-heads is 5 for 3 KV heads"),
        ({"num_heads": 4, "num_kv_heads": 4}, "at least 2 a KV head"),
    ],
)
def test_a_shape_that_does_not_hold_the_small_model_is_refused(small, tmp_path, sizes, words, capsys):
    assert inflate(small, tmp_path, "--lazy", **sizes) == 2
    assert words in capsys.readouterr().err


def test_a_custom_shape_needs_all_its_sizes(small, tmp_path, capsys):
    assert main([str(tmp_path), "--shape=custom", "--layers=11", f"--model-path={small.target}"]) == 2
    assert "missing: hidden_size, num_heads" in capsys.readouterr().err


def test_a_damaged_inflation_file_is_named(small, tmp_path):
    assert inflate(small, tmp_path, "--lazy") == 0
    file = tmp_path / "target" / "inflation.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "kind": "other"}))
    with pytest.raises(Exception, match=r"inflation\.json: kind is 'other'"):
        open_weights(tmp_path / "target")


@pytest.mark.slow
def test_the_default_pair_inflated_writes_the_same_text_and_accepts_as_much(tmp_path):
    sizes = {"hidden-size": 1024, "layers": 33, "num-heads": 16, "num-kv-heads": 4, "intermediate-size": 4096}
    words = [f"--{name}={size}" for name, size in sizes.items()]
    assert main([str(tmp_path), "--shape=custom", "--head-dim=128", "--lazy", *words]) == 0
    prompt = ChatPrompt(DEFAULT_MODEL_PATH).ids("Why is the sky blue?")
    generations, logits = [], []
    for target, head in ((DEFAULT_MODEL_PATH, DEFAULT_HEAD_PATH), (tmp_path / "target", tmp_path / "head")):
        pair = InProcess(Path(target), Path(head), torch.float32, num_threads=2)
        params = SamplingParams(max_tokens=24, temperature=0.0)
        generations.append(pair.generate(prompt, params, TreeShape(5, 4, 16)))
        logits.append(target_output(pair.target, np.array(prompt, np.int32)).logits)
    assert generations[0] == generations[1]
    assert generations[0].mean_accepted_length > 1.5
    torch.testing.assert_close(logits[1], logits[0], atol=8e-5, rtol=0)
    assert torch.equal(logits[1].argmax(-1), logits[0].argmax(-1))
