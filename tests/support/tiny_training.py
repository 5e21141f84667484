"""A tiny random target that can be asked in a chat template, and the flags of a small training run on it."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from tests.support.tiny_draft import HEAD_DIM, HIDDEN, VOCAB
from tests.support.tiny_target import NUM_LAYERS, TinyTarget, save_tiny_target
from training.config import TrainHeadConfig, parse

START, END = "<|im_start|>", "<|im_end|>"
USER, ASSISTANT = 4, 5
PREFIX = (1, USER)
JOINT = (2, 1, ASSISTANT)
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|> ' + m['role'] + ' ' + m['content'] + ' <|im_end|> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|> assistant ' }}{% endif %}"
)


def save_chat_target(root: Path) -> TinyTarget:
    """The tiny target with a tokenizer of words, w6 to w96, and a chat template."""
    tiny = save_tiny_target(root)
    words = ["<unk>", START, END, "system", "user", "assistant", *(f"w{i}" for i in range(6, VOCAB))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(START, special=True), AddedToken(END, special=True)])
    tokenizer.save(str(tiny.model_path / "tokenizer.json"))
    (tiny.model_path / "chat_template.jinja").write_text(TEMPLATE)
    return tiny


def become(model_path: Path, architecture: str) -> None:
    """Rewrites the tiny Llama as a random Qwen2 or Qwen3, untied."""
    generator = torch.Generator().manual_seed(8)
    weights = load_file(model_path / "model.safetensors")
    for layer in range(NUM_LAYERS):
        attention = f"model.layers.{layer}.self_attn."
        if architecture == "qwen2":
            for part in "qkv":
                size = len(weights[f"{attention}{part}_proj.weight"])
                weights[f"{attention}{part}_proj.bias"] = torch.randn(size, generator=generator)
        else:
            for part in "qk":
                weights[f"{attention}{part}_norm.weight"] = 1 + torch.randn(HEAD_DIM, generator=generator) / 4
    weights["lm_head.weight"] = torch.randn(VOCAB, HIDDEN, generator=generator) * 0.4
    save_file(weights, model_path / "model.safetensors")
    config = json.loads((model_path / "config.json").read_text())
    changes = {"model_type": architecture, "tie_word_embeddings": False}
    (model_path / "config.json").write_text(json.dumps({**config, **changes}))


def small_config(model_path: Path, out: Path, *flags: str) -> TrainHeadConfig:
    """A run of seconds on a CPU; later flags win."""
    return parse([f"--model-path={model_path}", f"--out={out}", *SMALL_FLAGS, *flags])


SMALL_FLAGS = (
    *("--device=cpu", "--dtype=float32", "--num-threads=1"),
    *("--tokens=1500", "--max-question-tokens=12", "--max-answer-tokens=20", "--seats=8"),
    *("--shard-sequences=16", "--held-out-every=4", "--batch-tokens=256", "--sequence-tokens=64"),
    *("--depths=3", "--steps=6", "--checkpoint-every=2", "--log-every=2", "--held-out-steps=1"),
    *("--eval-count=2", "--eval-max-tokens=6", "--eval-shapes=2,1,3;2,2,5", "--eval-speed-count=0"),
)
