"""The model's tokenizer, read from its folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from paceline.errors import ModelLoadError
from router.text.byte_level import ByteLevelDetokenizer, byte_table
from router.text.detokenizer import Detokenizer
from router.text.pieces import PieceEncoder
from router.text.windowed import WindowDetokenizer, WindowVocabulary

TOKENIZER_FILE = "tokenizer.json"


class TextTokenizer:
    """Encodes prompts and makes detokenizers. Safe to use from several threads. Owns the tokenizer that it is given."""

    def __init__(self, tokenizer: Tokenizer, *, fingerprint: str = "") -> None:
        self.fingerprint = fingerprint  # SHA-256 of the tokenizer's file, hexadecimal
        # A file may keep settings of its training, which would cut or pad prompts without a word.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._pieces = PieceEncoder(tokenizer)
        self._special_ids = frozenset(
            token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special
        )
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self.longest_token_len = max(map(len, vocabulary), default=1)  # characters
        decoder = json.loads(tokenizer.to_str()).get("decoder") or {}
        self._bytes_all: dict[int, bytes] | None = None
        self._bytes_text: dict[int, bytes] = {}
        if decoder.get("type") == "ByteLevel":
            self._bytes_all = byte_table(vocabulary)
            self._bytes_text = {i: data for i, data in self._bytes_all.items() if i not in self._special_ids}
        else:
            self._window = WindowVocabulary.of(tokenizer, special_ids=self._special_ids)

    @classmethod
    def load(cls, model_path: str) -> TextTokenizer:
        """Reads tokenizer.json of a model's folder (or of a model file's folder). Raises ModelLoadError."""
        path = model_folder(model_path) / TOKENIZER_FILE
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ModelLoadError(f"cannot read the tokenizer {path}: {error.strerror}; set --model-path") from error
        try:
            tokenizer = Tokenizer.from_buffer(data)
        # tokenizers raises a bare Exception for a file that does not parse.
        except Exception as error:
            raise ModelLoadError(f"{path} is no tokenizer of the tokenizers library: {error}") from error
        return cls(tokenizer, fingerprint=hashlib.sha256(data).hexdigest())

    @property
    def vocab_size(self) -> int:
        """Ids that have a token, added ones included; a model's own vocabulary may be padded past it."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids; special tokens spelt in the text are recognised, those a text begins with are added on demand."""
        if not add_special_tokens:
            return self._pieces.encode(text)
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of all ids at once: what a detokenizer's pieces add up to."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def detokenizer(self, *, skip_special_tokens: bool) -> Detokenizer:
        """A fresh one, for one output."""
        if self._bytes_all is not None:
            return ByteLevelDetokenizer(self._bytes_text if skip_special_tokens else self._bytes_all)
        return WindowDetokenizer(self._window, skip_special_tokens=skip_special_tokens)


def model_folder(model_path: str) -> Path:
    """The folder of a model path, which may name a weights file."""
    path = Path(model_path)
    return path.parent if path.is_file() else path
