"""The bench's own rendering of a prompt against the router's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.chat_prompt import ChatPrompt
from bench.workload_flags import DEFAULT_PROMPTS
from paceline.chat_template import ChatTemplate
from paceline.defaults import DEFAULT_MODEL_PATH
from paceline.errors import ModelLoadError
from router.text.tokenizer import TextTokenizer


def test_the_reference_sees_the_very_ids_that_the_router_sends():
    ours = ChatPrompt(DEFAULT_MODEL_PATH)
    template, tokenizer = ChatTemplate.load(DEFAULT_MODEL_PATH), TextTokenizer.load(DEFAULT_MODEL_PATH)
    for line in Path(DEFAULT_PROMPTS).read_text(encoding="utf-8").splitlines():
        prompt = json.loads(line)["prompt"]
        text = template.render([{"role": "user", "content": prompt}])
        assert ours.ids(prompt) == tokenizer.encode(text, add_special_tokens=False)


def test_a_folder_without_a_template_is_named(tmp_path):
    with pytest.raises(ModelLoadError, match=r"chat_template\.jinja is missing"):
        ChatPrompt(str(tmp_path))
