"""Data that a target makes: equal however often the work stopped, without repeats, as the engine would say it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.reference_loop import InProcess
from paceline.errors import ConfigError, DeadlineError, InvalidInputError
from paceline.types import SamplingParams
from tests.support.tiny_target import EOS, TinyTarget
from tests.support.tiny_training import JOINT, PREFIX, small_config
from training.corpus import Corpus
from training.files import StorageError
from training.progress import Deadline
from training.shards import ShardIndex
from training.synthesis import synthesise
from training.target import Target

NEVER = Deadline(None)


def make(model_path: Path, out: Path, *flags: str, deadline: Deadline = NEVER) -> ShardIndex:
    config = small_config(model_path, out, *flags)
    return synthesise(out / "data", Target.of(config.run), config.data, seed=config.run.seed, deadline=deadline)


def contents(index: ShardIndex) -> list[list[object]]:
    names = ("tokens", "length", "number", "question_start", "question_end", "answer_start", "temperature", "is_ended")
    return [[array.tolist() for array in index.columns(name)] for name in names]


@pytest.mark.parametrize(
    ("number", "question_seed", "answer_seed", "temperature"),
    [
        (0, 16294208416658607535, 7960286522194355700, 1.0),
        (7, 13064396156225473817, 9564308153959284907, 0.7),
        (21, 566489329403328680, 1351103705685551415, 1.0),
    ],
)
def test_a_conversation_is_what_the_engine_says_to_the_same_seeds(
    number: int, question_seed: int, answer_seed: int, temperature: float, chat_target: TinyTarget, trained_once: Path
) -> None:
    """Seeds and temperature are the conversation's for good: work that stopped goes on with the same data."""
    corpus = Corpus.read(ShardIndex.existing(trained_once / "data"))
    model = InProcess(chat_target.model_path, None, torch.float32, num_threads=1)
    i = corpus.number.tolist().index(number)
    tokens = corpus.tokens[corpus.offsets[i] : corpus.offsets[i + 1]].tolist()
    start, end, answer = int(corpus.question_start[i]), int(corpus.question_end[i]), int(corpus.answer_start[i])
    assert tokens[:start] == list(PREFIX) and tokens[end:answer] == list(JOINT)
    question = model.generate(tokens[:start], SamplingParams(max_tokens=12, temperature=1.0, seed=question_seed)).tokens
    assert [token for token in question if token != EOS] == tokens[start:end]
    assert corpus.temperature[i] == pytest.approx(temperature)
    params = SamplingParams(max_tokens=20, temperature=temperature, seed=answer_seed)
    assert model.generate(tokens[:answer], params).tokens == tokens[answer:]


def test_data_that_stopped_twice_equal_data_made_at_once(chat_target: TinyTarget, tmp_path: Path) -> None:
    at_once = make(chat_target.model_path, tmp_path / "once", "--tokens=1500")
    make(chat_target.model_path, tmp_path / "parts", "--tokens=1", "--seats=3")
    ticks = iter(range(10_000))
    with pytest.raises(DeadlineError, match=r"tokens of data in \d files; run the same command again"):
        make(chat_target.model_path, tmp_path / "parts", deadline=Deadline(60, clock=lambda: next(ticks)))
    in_parts = make(chat_target.model_path, tmp_path / "parts", "--tokens=1500")
    assert len(at_once.entries) == 3
    assert contents(in_parts) == contents(at_once)


def test_other_settings_are_refused_and_named(chat_target: TinyTarget, trained: Path) -> None:
    with pytest.raises(ConfigError, match=r"other settings \(max_answer_tokens 20, seed 0\)"):
        make(chat_target.model_path, trained, "--seed=1", "--max-answer-tokens=9")


def test_repeated_questions_are_left_out_and_nothing_but_repeats_ends_the_work(
    chat_target: TinyTarget, tmp_path: Path
) -> None:
    flags = ("--question-temperature=0", "--shard-sequences=4")
    with pytest.raises(ConfigError, match=r"of the last 4 conversations 4 repeated .* raise --question-temperature"):
        make(chat_target.model_path, tmp_path, *flags)
    entries = ShardIndex.existing(tmp_path / "data").entries
    assert [(entry.sequences, entry.duplicates) for entry in entries] == [(1, 3), (0, 4)]


def test_prompts_of_a_file_are_answered_once_each(chat_target: TinyTarget, tmp_path: Path) -> None:
    prompts = [f"w{i} w{i + 1} w{i % 7 + 6}" for i in range(10, 40)] + ["w10 w11 w9", " ".join(["w8"] * 50)]
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    index = make(chat_target.model_path, tmp_path, f"--prompts={file}", "--tokens=99999")
    corpus = Corpus.read(index)
    assert index.is_exhausted and sum(entry.duplicates for entry in index.entries) == 1
    assert len(corpus) == 30 - sum(entry.empty for entry in index.entries)
    first = corpus.prompts([0])[0]
    assert first[:2] == list(PREFIX) and first[2:5] == [10, 11, 9] and first[5:] == list(JOINT)
    assert (corpus.question_start == corpus.question_end).all()
    assert make(chat_target.model_path, tmp_path, f"--prompts={file}", "--tokens=99999").entries == index.entries


def test_conversations_of_a_file_are_taken_as_they_stand(chat_target: TinyTarget, tmp_path: Path) -> None:
    talk = [
        {"role": "user", "content": "w10 w11"},
        {"role": "assistant", "content": "w12"},
        {"role": "user", "content": "w13"},
        {"role": "assistant", "content": "w14 w15 w16"},
        {"role": "user", "content": "w17"},
    ]
    other = [{"from": "human", "value": "w20"}, {"from": "gpt", "value": "w21"}]
    file = tmp_path / "talks.jsonl"
    file.write_text(json.dumps({"messages": talk}) + "\n\n" + json.dumps({"conversations": other}) + "\n")
    index = make(chat_target.model_path, tmp_path, f"--conversations={file}")
    corpus = Corpus.read(index)
    assert corpus.tokens.tolist() == [
        1,
        4,
        10,
        11,
        2,
        1,
        5,
        12,
        2,
        1,
        4,
        13,
        2,
        1,
        5,
        14,
        15,
        16,
        2,
        1,
        4,
        20,
        *JOINT,
        21,
        2,
    ]
    assert corpus.answer_start.tolist() == [15, 6]


@pytest.mark.parametrize(
    ("flag", "line", "message"),
    [
        ("prompts", "{}", r":1 has no prompt"),
        ("prompts", "", r"holds no prompt"),
        ("prompts", "no", r":1 is no JSON"),
        ("prompts", "[1]", r":1 is no JSON object"),
        ("conversations", '{"messages": [{"role": "user", "content": "w9"}]}', r":1 has no question that an assistant"),
        ("conversations", '{"messages": 3}', r":1: messages is 3"),
        ("conversations", '{"messages": [{"role": "user", "content": null}]}', r":1: messages is"),
    ],
)
def test_bad_files_are_refused_with_their_line(
    chat_target: TinyTarget, tmp_path: Path, flag: str, line: str, message: str
) -> None:
    file = tmp_path / "given.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(InvalidInputError, match=message):
        make(chat_target.model_path, tmp_path / "out", f"--{flag}={file}")
    with pytest.raises(InvalidInputError, match="No such file"):
        make(chat_target.model_path, tmp_path / "out", f"--{flag}={file}.missing")


def test_a_full_disk_keeps_what_was_written(
    chat_target: TinyTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = []

    def full(file: object, **columns: np.ndarray) -> None:
        writes.append(file)
        if len(writes) == 2:
            raise OSError(28, "No space left on device")
        savez(file, **columns)

    savez = np.savez
    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(StorageError, match=r"shard-00001\.npz cannot be written \(No space left on device\)"):
        make(chat_target.model_path, tmp_path)
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["index.json", "shard-00000.npz"]
    monkeypatch.undo()
    resumed = make(chat_target.model_path, tmp_path)
    assert contents(resumed) == contents(make(chat_target.model_path, tmp_path / "whole"))


def test_a_model_without_a_chat_template_says_so(chat_target: TinyTarget, tmp_path: Path) -> None:
    bare = tmp_path / "model"
    bare.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (bare / name).symlink_to(chat_target.model_path / name)
    with pytest.raises(ConfigError, match="has no chat template"):
        make(bare, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_conversations_past_the_targets_positions_are_refused(chat_target: TinyTarget, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="317 tokens and the target has positions for 256"):
        make(chat_target.model_path, tmp_path, "--max-answer-tokens=300")
