"""Pieces of text that a detokenizer gives add up to the whole, and none of them is ever half a character."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import BPE

from paceline.defaults import DEFAULT_MODEL_PATH
from router.text.tokenizer import TextTokenizer

WORDS = ["▁", "▁the", "▁▁", "cat", "▁sat", "é", "你", ".", "\n", "a▁b", "\ufffd"]


def sentencepiece_like(decoder: decoders.Decoder) -> TextTokenizer:
    """A vocabulary with metaspaces, all byte tokens, an end token, and a hole in its ids."""
    tokens = [*WORDS, *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {"<unk>": 0} | {token: index + 2 for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    tokenizer.decoder = decoder
    return TextTokenizer(tokenizer)


LLAMA2 = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)
GEMMA = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
TOKENIZERS = {
    "byte-level": TextTokenizer.load(DEFAULT_MODEL_PATH),
    "llama-2": sentencepiece_like(LLAMA2),
    "gemma": sentencepiece_like(GEMMA),
    "metaspace": sentencepiece_like(decoders.Metaspace()),
}
SPLITS = st.lists(st.lists(st.integers(0, 300), max_size=5), max_size=12)
# Ids of single bytes and of special tokens, where all that is hard lies, and of any other token.
BYTE_LEVEL_IDS = st.one_of(st.integers(0, 300), st.integers(0, 49151), st.just(60_000))
BYTE_LEVEL_SPLITS = st.lists(st.lists(BYTE_LEVEL_IDS, max_size=5), max_size=12)


def check_pieces(tokenizer: TextTokenizer, pushes: list[list[int]], skip: bool) -> None:
    detokenizer = tokenizer.detokenizer(skip_special_tokens=skip)
    pieces = [detokenizer.push(ids) for ids in pushes] + [detokenizer.finish()]
    whole = tokenizer.decode([i for ids in pushes for i in ids], skip_special_tokens=skip)
    assert "".join(pieces) == whole


@given(pushes=BYTE_LEVEL_SPLITS, skip=st.booleans())
@settings(max_examples=200)
def test_byte_level_pieces_add_up_to_the_decode_of_all_tokens(pushes: list[list[int]], skip: bool) -> None:
    check_pieces(TOKENIZERS["byte-level"], pushes, skip)


@pytest.mark.parametrize("name", ["llama-2", "gemma", "metaspace"])
@given(pushes=SPLITS, skip=st.booleans())
@settings(max_examples=150)
def test_metaspace_and_byte_fallback_pieces_add_up_too(name: str, pushes: list[list[int]], skip: bool) -> None:
    check_pieces(TOKENIZERS[name], pushes, skip)


@given(text=st.text(st.sampled_from("aé ñ\n你好🦜👩\u200d🚀ก็"), max_size=30))
@settings(max_examples=100)
def test_no_piece_of_valid_text_holds_a_broken_character(text: str) -> None:
    tokenizer = TOKENIZERS["byte-level"]
    detokenizer = tokenizer.detokenizer(skip_special_tokens=False)
    pieces = [detokenizer.push([i]) for i in tokenizer.encode(text, add_special_tokens=False)]
    assert "".join(pieces) == text
    assert detokenizer.finish() == ""


def test_an_emoji_comes_with_its_last_byte() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode("🦜", add_special_tokens=False)
    assert len(ids) > 1
    detokenizer = tokenizer.detokenizer(skip_special_tokens=True)
    assert [detokenizer.push([i]) for i in ids] == [""] * (len(ids) - 1) + ["🦜"]


def test_byte_tokens_come_out_when_their_run_ends() -> None:
    tokenizer = TOKENIZERS["llama-2"]
    byte_id = {byte: 2 + len(WORDS) + byte for byte in range(256)}
    detokenizer = tokenizer.detokenizer(skip_special_tokens=True)
    assert [detokenizer.push([byte_id[byte]]) for byte in "é".encode()] == ["", ""]
    assert detokenizer.push([2 + WORDS.index("cat")]) == "écat"


def test_an_unfinished_character_is_flushed_at_the_end() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode("🦜", add_special_tokens=False)
    detokenizer = tokenizer.detokenizer(skip_special_tokens=True)
    assert detokenizer.push(ids[:-1]) == ""
    assert detokenizer.finish() == "\ufffd"
