"""What a token id looks like, for people who read a round."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from paceline.errors import ModelLoadError

_FILE = "tokenizer.json"


class Vocabulary:
    """Token ids as quoted text; without a tokenizer as bare numbers."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, model_path: str) -> Vocabulary:
        """Of a model's folder, or of its GGUF file's; of "" bare numbers. Raises ModelLoadError."""
        if not model_path:
            return cls(None)
        path = Path(model_path)
        file = (path.parent if path.is_file() else path) / _FILE
        if not file.is_file():
            raise ModelLoadError(f"there is no {file}: name the model's folder, or --model-path= to see bare numbers")
        try:
            return cls(Tokenizer.from_file(str(file)))
        except Exception as error:
            raise ModelLoadError(f"{file} is no tokenizer: {error}") from error

    def show(self, token_id: int) -> str:
        """``4211 ' quick'``"""
        if self._tokenizer is None:
            return str(token_id)
        return f"{token_id} {self._tokenizer.decode([token_id], skip_special_tokens=False)!r}"
