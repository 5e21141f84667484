"""Detokenizer for byte-level BPE: each token is a fixed run of bytes."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence


class ByteLevelDetokenizer:
    """A Detokenizer over token bytes and an incremental UTF-8 decoder; ids that the table lacks have no text.

    Python and the tokenizers library replace malformed UTF-8 alike: one U+FFFD for each maximal part.
    """

    __slots__ = ("_bytes_of", "_decode")

    def __init__(self, table: Mapping[int, bytes]) -> None:
        self._bytes_of = table.get
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode

    def push(self, ids: Sequence[int]) -> str:
        bytes_of = self._bytes_of
        return self._decode(b"".join([bytes_of(token_id, b"") for token_id in ids]))

    def finish(self) -> str:
        return self._decode(b"", True)


def byte_table(vocabulary: Mapping[str, int]) -> dict[int, bytes]:
    """The bytes of each id. A token with a character outside the byte alphabet stands for its own UTF-8."""
    alphabet = _byte_alphabet()
    table = {}
    for token, token_id in vocabulary.items():
        try:
            table[token_id] = bytes([alphabet[character] for character in token])
        except KeyError:
            table[token_id] = token.encode()
    return table


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 and up, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet
