"""Text that is encoded piece by piece has the ids that the tokenizers library gives it as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from paceline.defaults import DEFAULT_MODEL_PATH
from router.text.pieces import PieceEncoder
from router.text.tokenizer import TOKENIZER_FILE

CUTS = ("<|a|>", "<|a|><|b|>", "<|b|>", "<tool>")
MARK = "\u2581"  # Metaspace's, with which words begin
PARTS = [*CUTS, "<|im_start|>", "<mask>", "<T>", "<|", "a ", "a", "B\n", " ", " the", "é", "1", "'s"]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=12)


def default_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(Path(DEFAULT_MODEL_PATH) / TOKENIZER_FILE))


def with_prefix_space() -> Tokenizer:
    tokenizer = default_tokenizer()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=True)]
    )
    return tokenizer


def with_normalizer() -> Tokenizer:
    """It has a token that is found in normalised text alone, <T> in lower case."""
    tokenizer = default_tokenizer()
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase(), normalizers.Prepend("x")])
    tokenizer.add_tokens([AddedToken("<t>", normalized=True)])
    return tokenizer


def with_greedy_token() -> Tokenizer:
    tokenizer = default_tokenizer()
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    return tokenizer


def with_marked_words(scheme: str) -> Tokenizer:
    words = ["a", "B", "the", "<"]
    vocabulary = {token: i for i, token in enumerate(["?", MARK, *words, *(MARK + word for word in words)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    return tokenizer


MAKERS = {
    "default": default_tokenizer,
    "prefix space": with_prefix_space,
    "normalizer": with_normalizer,
    "greedy token": with_greedy_token,
    "first word marked": lambda: with_marked_words("first"),
    "all words marked": lambda: with_marked_words("always"),
}


@pytest.fixture(scope="module", params=MAKERS)
def both(request: pytest.FixtureRequest) -> tuple[Tokenizer, PieceEncoder]:
    tokenizer = MAKERS[request.param]()
    tokenizer.add_special_tokens([AddedToken(cut, normalized=False) for cut in CUTS])
    return tokenizer, PieceEncoder(tokenizer)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(text=TEXTS.map("".join))
def test_pieces_have_the_ids_of_the_whole(both: tuple[Tokenizer, PieceEncoder], text: str) -> None:
    tokenizer, encoder = both
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert encoder.encode(text) == ids
    assert encoder.encode(text) == ids, "now that its pieces are known"


def test_a_piece_too_long_to_be_kept_is_encoded_all_the_same() -> None:
    tokenizer = default_tokenizer()
    text = "<|im_start|>" + "word " * 3000 + "<|im_end|>"
    assert PieceEncoder(tokenizer).encode(text) == tokenizer.encode(text, add_special_tokens=False).ids
