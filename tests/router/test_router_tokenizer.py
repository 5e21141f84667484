"""The model's tokenizer as the router reads it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from paceline.defaults import DEFAULT_MODEL_PATH
from paceline.errors import ModelLoadError
from router.text.tokenizer import TOKENIZER_FILE, TextTokenizer


def test_a_file_that_truncates_and_pads_changes_no_prompt(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    source = Tokenizer.from_file(str(Path(DEFAULT_MODEL_PATH) / TOKENIZER_FILE))
    source.enable_truncation(4)
    source.enable_padding(length=16)
    source.save(str(tmp_path / TOKENIZER_FILE))
    text = "More than four tokens, and fewer than sixteen."
    ids = TextTokenizer.load(str(tmp_path)).encode(text, add_special_tokens=True)
    assert 4 < len(ids) < 16
    assert ids == tokenizer.encode(text, add_special_tokens=True)


def test_a_weights_file_names_the_folder_of_its_tokenizer(tmp_path: Path) -> None:
    weights = tmp_path / "model.gguf"
    weights.touch()
    with pytest.raises(ModelLoadError, match=f"{tmp_path / TOKENIZER_FILE}.*--model-path"):
        TextTokenizer.load(str(weights))


def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / TOKENIZER_FILE).write_text("{}")
    with pytest.raises(ModelLoadError, match="is no tokenizer"):
        TextTokenizer.load(str(tmp_path))
