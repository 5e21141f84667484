"""Detokenizer for byte-level BPE: each token is a fixed run of bytes."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Mapping, Sequence


class ByteLevelDetokenizer:
    """A Detokenizer over token bytes, which holds a code point's first bytes back; ids that the table lacks have no
    text.

    Python and the tokenizers library replace malformed UTF-8 alike: one U+FFFD for each maximal part.
    """

    __slots__ = ("_bytes_of", "_held")

    def __init__(self, table: Mapping[int, bytes]) -> None:
        self._bytes_of = table.get
        self._held = b""

    def push(self, ids: Sequence[int]) -> str:
        bytes_of = self._bytes_of
        data = self._held + b"".join([bytes_of(token_id, b"") for token_id in ids])
        text, num_decoded = utf_8_decode(data, "replace", False)
        self._held = data[num_decoded:]
        return text

    def finish(self) -> str:
        return utf_8_decode(self._held, "replace", True)[0]


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
