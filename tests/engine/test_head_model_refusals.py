"""Heads that do not fit: refused at load by draft and target, by name and value."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.config import load_model_config
from engine.head_model import HeadModel
from engine.head_weights import check_head
from kernels.reference.ops import ReferenceOps
from paceline.errors import ModelLoadError
from tests.support.waiting import WAIT_S


def _load(head: Path, target: Path) -> HeadModel:
    return HeadModel.load(head, target, dtype=torch.float32, ops=ReferenceOps(), device=torch.device("cpu"))


@pytest.mark.parametrize(
    ("edit", "changes", "message"),
    [
        ({"d2t": None}, {}, "has no d2t tensor, and its draft vocabulary of 24 is not the target's of 60"),
        ({}, {"hidden_size": 64}, "is for a target of hidden size 64; this target has 32"),
        ({}, {"target_hidden_size": 48}, "is for a target of hidden size 48; this target has 32"),
        ({}, {"draft_vocab_size": 20}, r"d2t has shape \[24\]; the head's draft_vocab_size is 20"),
        ({"d2t": torch.full((24,), 40)}, {}, "d2t leads to target ids 40 to 63; the target has 60"),
        ({"embed_tokens.weight": torch.ones(50, 32)}, {"vocab_size": 50}, "embeds 50 tokens and the target has 60"),
        ({"input_norm.weight": torch.ones(96)}, {}, r"gives no use: input_norm\.weight"),
        ({"layers.1.mlp.up_proj.weight": torch.ones(1)}, {}, r"gives no use: layers\.1\.mlp\.up_proj\.weight"),
        ({"midlayer.hidden_norm.weight": None}, {}, r"no tensor midlayer\.hidden_norm\.weight"),
        ({}, {"intermediate_size": 40}, r"gate_proj\.weight has shape \[48, 32\], the config says \[40, 32\]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_head_that_does_not_fit_is_refused_by_the_draft(
    edit: dict[str, Tensor | None], changes: dict[str, object], message: str, head_target: Path, make_head: Callable
) -> None:
    head = make_head(edit=edit, **changes)
    with pytest.raises(ModelLoadError, match=message):
        _load(head.path, head_target)


@pytest.mark.parametrize(
    ("edit", "changes", "message"),
    [
        ({"fc.weight": None}, {}, r"no tensor fc\.weight"),
        ({}, {"norm_before_fc": True}, r"no tensor input_norm\.weight"),
        ({}, {"fc_norm": True}, r"no tensor fc_norm\.0\.weight"),
        ({}, {"hidden_size": 64}, "is for a target of hidden size 64; this target has 32"),
        (
            {},
            {"hidden_size": 64, "target_hidden_size": 32},
            r"fc\.weight has shape \[32, 96\], the config says \[64, 96\]",
        ),
        ({}, {"eagle_aux_hidden_state_layer_ids": [1, 2, 6]}, r"target layers \(2, 3, 7\); the target has 6 layers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_head_whose_features_do_not_fit_is_refused_by_the_target(
    edit: dict[str, Tensor | None],
    changes: dict[str, object],
    message: str,
    head_target: Path,
    make_head: Callable,
    load_target: Callable,
) -> None:
    head = make_head(edit=edit, **changes)
    with pytest.raises(ModelLoadError, match=message):
        load_target(head_target, head.path)


def test_a_truncated_head_is_refused_by_both(head_target: Path, make_head: Callable, load_target: Callable) -> None:
    head = make_head()
    path = head.path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    for load in (lambda: _load(head.path, head_target), lambda: load_target(head_target, head.path)):
        with pytest.raises(ModelLoadError, match=r"head.model\.safetensors \(\d+ bytes\) is truncated"):
            load()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", None, r"cannot read .*config\.json: No such file"),
        ("config.json", b"{", r"config\.json is not JSON"),
        ("model.safetensors", None, r"holds neither \*\.safetensors nor"),
        ("model.safetensors", b"xx", r"model\.safetensors \(2 bytes\) is truncated"),
    ],
)
def test_a_head_that_cannot_be_read_is_named_with_its_flag(
    file: str, content: bytes | None, message: str, head_target: Path, make_head: Callable
) -> None:
    head, target = make_head().path, load_model_config(head_target)
    check_head(head, target)
    (head / file).unlink()
    if content is not None:
        (head / file).write_bytes(content)
    expected = rf"^--speculative-draft-model-path is {head}; it must be a folder with the config\.json .*: .*{message}"
    with pytest.raises(ModelLoadError, match=expected):
        check_head(head, target)


@pytest.mark.parametrize("module", ["draft_service", "target_service"])
def test_a_service_looks_at_its_head_before_it_loads_the_model(module: str, head_target: Path) -> None:
    """The model's weights are damaged, too: that would be said first by a service that loads them first."""
    next(head_target.glob("*.safetensors")).write_bytes(b"xx")
    flags = ["--port=0", f"--model-path={head_target}", "--speculative-draft-model-path=/no/such/head"]
    done = subprocess.run(
        [sys.executable, "-m", module, *flags], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 3
    said = done.stderr.strip().rpartition("\n")[2]
    assert said.startswith(f"{module}: --speculative-draft-model-path is /no/such/head; it must be a folder")
