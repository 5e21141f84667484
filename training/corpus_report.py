"""What a corpus is like: lengths, repetition, and how many tokens of the vocabulary make up how much of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from training.corpus import ANSWER, QUESTION, Corpus
from training.shards import ShardEntry

_PERCENTILES = (5, 25, 50, 75, 95)
_COVERAGES = (0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
_SIZES = (4096, 8192, 16384, 32768)
_GRAM = 4  # tokens of the runs whose repetition is counted
_HASH_BITS = np.uint64(40)  # which leaves room for 16 M conversations
_MUCH = 0.3  # share of repeated runs from which on an answer counts as repetitive


def corpus_report(corpus: Corpus, entries: Sequence[ShardEntry], vocab_size: int) -> dict[str, Any]:
    """JSON: see docs/training.md."""
    regions = corpus.regions()
    repeated = _repetition(corpus)
    counts = token_counts(corpus, regions >= QUESTION, vocab_size)
    return {
        "conversations": len(corpus),
        "tokens": len(corpus.tokens),
        "question_tokens": int((regions == QUESTION).sum()),
        "answer_tokens": int((regions == ANSWER).sum()),
        "left_out": {
            "duplicates": sum(entry.duplicates for entry in entries),
            "empty": sum(entry.empty for entry in entries),
        },
        "question_length": _spread(corpus.question_end - corpus.question_start),
        "answer_length": _spread(corpus.lengths - corpus.answer_start),
        "cut_answers": float(1 - corpus.is_ended.mean()),
        "repetition": {
            "mean": float(repeated.mean()),
            f"share_above_{_MUCH}": float((repeated > _MUCH).mean()),
            "mean_by_temperature": {
                f"{temperature:g}": float(repeated[corpus.temperature == temperature].mean())
                for temperature in np.unique(corpus.temperature)
            },
        },
        "vocabulary": _vocabulary(counts),
    }


def token_counts(corpus: Corpus, chosen: np.ndarray, vocab_size: int) -> np.ndarray:
    """[vocab_size] int64: how often each token is among those chosen [tokens] bool."""
    return np.bincount(corpus.tokens[chosen], minlength=vocab_size)


def covering_size(counts: np.ndarray, coverage: float) -> int:
    """How many of the most frequent tokens make up that share of all."""
    shares = np.cumsum(np.sort(counts)[::-1]) / counts.sum()
    return int(np.searchsorted(shares, coverage) + 1)


def _vocabulary(counts: np.ndarray) -> dict[str, Any]:
    shares = np.cumsum(np.sort(counts)[::-1]) / max(counts.sum(), 1)
    return {
        "used": int((counts > 0).sum()),
        "tokens_for_coverage": {f"{share:g}": min(covering_size(counts, share), len(counts)) for share in _COVERAGES},
        "coverage_of_size": {str(size): float(shares[size - 1]) for size in _SIZES if size <= len(counts)},
    }


def _spread(lengths: np.ndarray) -> dict[str, float]:
    percentiles = np.percentile(lengths, _PERCENTILES)
    return {
        "mean": float(lengths.mean()),
        **{f"p{p}": float(x) for p, x in zip(_PERCENTILES, percentiles, strict=True)},
    }


def _repetition(corpus: Corpus) -> np.ndarray:
    """[n] float64: the share of an answer's runs of four tokens that it had before; 0 for a short one."""
    conversation = np.repeat(np.arange(len(corpus)), corpus.lengths)
    place = np.arange(len(corpus.tokens)) - corpus.offsets[conversation]
    run = np.zeros(len(corpus.tokens), np.uint64)
    for ahead in range(_GRAM):  # a polynomial hash, wrapping, whose upper bits depend on all tokens
        run = (run + np.roll(corpus.tokens, -ahead).astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    is_run = (place >= corpus.answer_start[conversation]) & (place + _GRAM <= corpus.lengths[conversation])
    conversation, run = conversation[is_run], run[is_run]
    # Conversation and hash in one key: numpy sorts plain integers faster than it orders by two columns.
    key = np.sort(conversation.astype(np.uint64) << _HASH_BITS | run >> (np.uint64(64) - _HASH_BITS))
    conversation = (key >> _HASH_BITS).astype(np.int64)
    is_repeat = np.zeros(len(key), np.bool_)
    is_repeat[1:] = key[1:] == key[:-1]
    totals = np.bincount(conversation, minlength=len(corpus))
    return np.bincount(conversation, is_repeat, minlength=len(corpus)) / np.maximum(totals, 1)
