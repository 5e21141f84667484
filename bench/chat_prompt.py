"""A prompt's token ids in the model's chat template, where no router is there to say them."""

from __future__ import annotations

from pathlib import Path

import jinja2.sandbox
from tokenizers import Tokenizer

from paceline.errors import ModelLoadError


class ChatPrompt:
    """One user turn with the assistant's opened, as the router renders it. Raises ModelLoadError."""

    def __init__(self, model_path: str) -> None:
        path = Path(model_path)
        folder = path if path.is_dir() else path.parent
        template, tokenizer = folder / "chat_template.jinja", folder / "tokenizer.json"
        for file in (template, tokenizer):
            if not file.is_file():
                raise ModelLoadError(f"{file} is missing: --model-path must name a folder with template and tokenizer")
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string(template.read_text(encoding="utf-8"))
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def ids(self, prompt: str) -> list[int]:
        messages = [{"role": "user", "content": prompt}]
        text = self._template.render(messages=messages, add_generation_prompt=True)
        return self._tokenizer.encode(text, add_special_tokens=False).ids
