"""A corpus's parts, its report, the draft vocabulary and the batches, on conversations written by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from training.batches import Batches, BatchRules
from training.config import ShapeConfig
from training.corpus import ANSWER, QUESTION, TEMPLATE, Corpus
from training.corpus_report import corpus_report
from training.draft_vocabulary import DraftVocabulary
from training.shards import ShardEntry

VOCAB = 40


def corpus_of(*conversations: tuple[list[int], int, int, int]) -> Corpus:
    """(tokens, question start, question end, answer start) each."""
    parts = np.array([starts for _, *starts in conversations], np.int64)
    return Corpus(
        tokens=np.concatenate([tokens for tokens, *_ in conversations]).astype(np.uint16),
        offsets=np.cumsum([0] + [len(tokens) for tokens, *_ in conversations]),
        question_start=parts[:, 0],
        question_end=parts[:, 1],
        answer_start=parts[:, 2],
        temperature=np.zeros(len(conversations), np.float32),
        is_ended=np.ones(len(conversations), np.bool_),
        number=np.arange(len(conversations)),
    )


SMALL = corpus_of(([1, 4, 10, 11, 2, 5, 12, 2], 2, 4, 6), ([1, 4, 13, 2, 5, 9, 9, 9, 9, 9, 9, 2], 2, 3, 5))


def random_corpus(count: int) -> Corpus:
    rng = np.random.default_rng(0)
    lengths = rng.integers(4, 30, count)
    return corpus_of(*((rng.integers(0, VOCAB, length).tolist(), 1, 2, 3) for length in lengths))


def test_each_token_knows_its_part() -> None:
    t, q, a = TEMPLATE, QUESTION, ANSWER
    assert SMALL.regions().tolist() == [t, t, q, q, t, t, a, a, t, t, q, t, t, a, a, a, a, a, a, a]


def test_the_report_counts_lengths_repeats_and_coverage() -> None:
    report = corpus_report(SMALL, [ShardEntry("", 2, 20, 3, 1)], VOCAB)
    assert (report["conversations"], report["tokens"], report["answer_tokens"]) == (2, 20, 9)
    assert report["left_out"] == {"duplicates": 3, "empty": 1}
    assert report["answer_length"]["mean"] == 4.5
    assert report["repetition"]["mean"] == pytest.approx((0 + 2 / 4) / 2)  # 9999 9999 9999 9992
    assert report["vocabulary"]["used"] == 6
    assert report["vocabulary"]["tokens_for_coverage"]["0.9"] == 5


def test_held_out_conversations_are_the_same_with_more_data() -> None:
    corpus = random_corpus(100)
    trained, held_out = corpus.split(8)
    assert len(trained) + len(held_out) == 100 and held_out.tolist() == list(range(0, 100, 8))


def test_the_draft_vocabulary_is_the_most_frequent_tokens_in_order() -> None:
    chosen = DraftVocabulary.chosen(SMALL, ShapeConfig(draft_vocab_size=3), VOCAB)
    assert chosen.target_ids.tolist() == [2, 9, 10]
    assert chosen.d2t.tolist() == [2, 8, 8]
    assert chosen.t2d.nonzero().flatten().tolist() == [2, 9, 10]
    assert [chosen.draft_ids[i].item() for i in (2, 9, 10, 11)] == [0, 1, 2, -1]
    assert len(DraftVocabulary.chosen(SMALL, ShapeConfig(draft_vocab_coverage=1.0), VOCAB)) == VOCAB


def rules(**changes: object) -> BatchRules:
    return replace(BatchRules(batch_tokens=64, sequence_tokens=20, question_weight=0.5, seed=3), **changes)


def test_an_epoch_has_every_conversation_once_in_rectangles_that_fit() -> None:
    corpus = random_corpus(200)
    batches = Batches(corpus, np.arange(200), rules())
    epoch = list(islice(batches.from_number(0, 1), batches.in_epoch(0)))
    assert sum(len(batch.lengths) for batch in epoch) == 200
    assert all(batch.tokens.size <= 64 and batch.tokens.shape[1] == batch.lengths.max() for batch in epoch)
    assert sum(int(batch.lengths.sum()) for batch in epoch) == batches.num_tokens
    assert batches.num_tokens / sum(batch.tokens.size for batch in epoch) > 0.9
    starts = {tuple(corpus.tokens[corpus.offsets[i] : corpus.offsets[i] + 4].tolist()) for i in range(200)}
    assert {tuple(row[:4].tolist()) for batch in epoch for row in batch.tokens} == starts


def test_weights_follow_the_parts_and_stop_at_the_end() -> None:
    (batch,) = islice(Batches(SMALL, np.arange(2), rules()).from_number(0, 1), 1)
    by_length = dict(zip(batch.lengths.tolist(), batch.weights.tolist(), strict=True))
    assert by_length[8] == [0, 0, 0.5, 0.5, 0, 0, 1, 1, 0, 0, 0, 0]
    assert by_length[12] == [0, 0, 0.5, 0, 0, 1, 1, 1, 1, 1, 1, 1]


def test_the_order_is_a_function_of_seed_and_number_alone() -> None:
    corpus = random_corpus(60)

    def tokens(number: int, stride: int, count: int, seed: int = 3) -> list[list[list[int]]]:
        batches = Batches(corpus, np.arange(60), rules(seed=seed))
        return [batch.tokens.tolist() for batch in islice(batches.from_number(number, stride), count)]

    whole = tokens(0, 1, 90)
    assert tokens(37, 1, 53) == whole[37:]
    assert tokens(1, 2, 45) == whole[1::2]
    assert tokens(0, 1, 90, seed=4) != whole
