"""ShardIndex: the data folder. Files of conversations in order of number, and an index that says which count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import ConfigError
from training.conversation import Conversation
from training.files import read_json, whole_file, write_json

_INDEX = "index.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One file: what is in it, and what was left out of it."""

    file: str
    sequences: int
    tokens: int
    duplicates: int  # of a question or prompt that is in this or an earlier file
    empty: int


class ShardIndex:
    """What index.json says. A file that it does not name does not count: the index is written last."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """settings: all that the conversations depend on, as JSON.

        Raises ConfigError where the folder holds data of other settings.
        """
        self.folder = folder
        self.entries: list[ShardEntry] = []
        self.is_exhausted = False  # the source had no more
        self.settings = dict(settings)
        if (folder / _INDEX).exists():
            self._read()

    @classmethod
    def existing(cls, folder: Path) -> ShardIndex:
        """Whatever its settings are. Raises ConfigError where there is none, or nothing in it."""
        path = folder / _INDEX
        if not path.exists():
            raise ConfigError(f"there is no {path}: make data first (--do synthesise,...)")
        index = cls(folder, read_json(path).get("settings", {}))
        if index.num_tokens == 0:
            raise ConfigError(f"{folder} holds no conversation yet: run the step synthesise to its end")
        return index

    @property
    def num_tokens(self) -> int:
        return sum(entry.tokens for entry in self.entries)

    def keys(self) -> np.ndarray:
        """uint64, of all conversations in the files."""
        parts = [self._array(entry, "key") for entry in self.entries]
        return np.concatenate(parts) if parts else np.zeros(0, np.uint64)

    def append(self, columns: dict[str, Any], *, duplicates: int, empty: int) -> None:
        """Writes the next file, then the index. Raises StorageError, and then nothing changed."""
        name = f"shard-{len(self.entries):05d}.npz"
        with whole_file(self.folder / name) as part, part.open("wb") as file:
            np.savez(file, **columns)
        counts = (len(columns["number"]), len(columns["tokens"]))
        self._write([*self.entries, ShardEntry(name, *counts, duplicates, empty)], self.is_exhausted)

    def mark_exhausted(self) -> None:
        """Raises StorageError."""
        self._write(self.entries, True)

    def columns(self, name: str) -> list[np.ndarray]:
        """A column of each file."""
        return [self._array(entry, name) for entry in self.entries]

    def _array(self, entry: ShardEntry, name: str) -> np.ndarray:
        path = self.folder / entry.file
        try:
            with np.load(path) as file:
                array: np.ndarray = file[name]
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(
                f"{path} is missing or damaged ({error}); remove {self.folder} and make the data again"
            ) from error
        return array

    def _write(self, entries: list[ShardEntry], is_exhausted: bool) -> None:
        index = {
            "format": _FORMAT,
            "settings": self.settings,
            "exhausted": is_exhausted,
            "shards": [asdict(entry) for entry in entries],
        }
        write_json(self.folder / _INDEX, index)
        self.entries, self.is_exhausted = entries, is_exhausted

    def _read(self) -> None:
        path = self.folder / _INDEX
        value = read_json(path)
        if value.get("format") != _FORMAT:
            raise ConfigError(
                f"{path} has format {value.get('format')}; this version reads {_FORMAT}: name another --out"
            )
        try:
            there, entries = value["settings"], [ShardEntry(**entry) for entry in value["shards"]]
            is_exhausted = bool(value["exhausted"])
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{path} is damaged ({error}): remove {self.folder} and make the data again") from error
        other = [name for name in {*there, *self.settings} if there.get(name) != self.settings.get(name)]
        if other:
            names = ", ".join(f"{name} {there.get(name)!r}" for name in sorted(other))
            raise ConfigError(
                f"{self.folder} holds data made with other settings ({names}): give the same flags again, or "
                "another --out"
            )
        self.entries, self.is_exhausted = entries, is_exhausted


class ShardWriter:
    """Sorts conversations that end in any order into files by number, and leaves out repeats and empty ones.

    A file is written once all its numbers have ended, so that the data are the same however often the work stopped.
    """

    def __init__(self, index: ShardIndex, *, shard_sequences: int, vocab_size: int) -> None:
        self._index = index
        self._size = shard_sequences
        self._token_dtype = np.uint16 if vocab_size <= 2**16 else np.uint32
        self._seen = set(index.keys().tolist())
        self._waiting: dict[int, list[Conversation]] = {}

    @property
    def first_number(self) -> int:
        """Of the next file."""
        return len(self._index.entries) * self._size

    def add(self, conversation: Conversation) -> None:
        """Writes the files that it completes. Raises StorageError."""
        self._waiting.setdefault(conversation.number // self._size, []).append(conversation)
        while len(self._waiting.get(len(self._index.entries), ())) == self._size:
            self._write()

    def finish(self) -> None:
        """Writes what is left, of a source that had no more. Raises StorageError."""
        if self._waiting:
            self._write()
        self._index.mark_exhausted()

    def _write(self) -> None:
        number = len(self._index.entries)
        ordered = sorted(self._waiting.get(number, ()), key=lambda conversation: conversation.number)
        filled = [conversation for conversation in ordered if not conversation.is_empty]
        kept: dict[int, Conversation] = {}
        for conversation in filled:
            if conversation.key not in self._seen:
                kept.setdefault(conversation.key, conversation)
        self._index.append(self._columns(kept), duplicates=len(filled) - len(kept), empty=len(ordered) - len(filled))
        self._seen.update(kept)
        self._waiting.pop(number, None)

    def _columns(self, kept: Mapping[int, Conversation]) -> dict[str, np.ndarray]:
        conversations = list(kept.values())
        lengths = [len(conversation.tokens) for conversation in conversations]
        tokens = [conversation.tokens for conversation in conversations] or [np.zeros(0, np.int32)]
        starts = ("question_start", "question_end", "answer_start")
        return {
            "tokens": np.concatenate(tokens).astype(self._token_dtype),
            "length": np.array(lengths, np.uint32),
            "number": np.array([conversation.number for conversation in conversations], np.int64),
            "key": np.array(list(kept), np.uint64),
            "temperature": np.array([conversation.temperature for conversation in conversations], np.float32),
            "is_ended": np.array([conversation.is_ended for conversation in conversations], np.bool_),
            **{name: np.array([getattr(c, name) for c in conversations], np.uint32) for name in starts},
        }
