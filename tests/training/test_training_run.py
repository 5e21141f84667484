"""A training run: it learns, goes on bit for bit, refuses other settings, and never leaves a broken folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.errors import ConfigError, DeadlineError
from tests.support.tiny_target import TinyTarget
from tests.support.tiny_training import small_config
from training.checkpoint import Checkpoint
from training.files import StorageError
from training.pipeline import Pipeline
from training.progress import Deadline
from training.run_log import RunLog
from training.trainer import Trainer

TIMED = ("tokens_per_s",)


def train(model_path: Path, out: Path, *flags: str) -> Checkpoint:
    Pipeline(small_config(model_path, out, "--do=train", *flags)).run()
    return Checkpoint.load(out / "train" / "checkpoint.pt")


def log_of(out: Path) -> list[dict[str, Any]]:
    lines = RunLog(out / "train" / "log.jsonl").lines()
    return [{name: value for name, value in line.items() if name not in TIMED} for line in lines]


@pytest.fixture
def untrained(trained: Path) -> Path:
    """An OUT folder with data alone."""
    shutil.rmtree(trained / "train")
    shutil.rmtree(trained / "head")
    return trained


def assert_equal(one: Checkpoint, other: Checkpoint) -> None:
    for name, weight in one.weights.items():
        assert torch.equal(weight, other.weights[name]), name
    for name, tensors in one.optimizer.items():
        assert all(map(torch.equal, tensors, other.optimizer[name])), name


def test_a_run_that_was_stopped_goes_on_bit_for_bit(
    chat_target: TinyTarget, untrained: Path, trained_once: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(Exception):
        pass

    def stop(self: Trainer, *args: object) -> bool:
        if self._step == 5:  # past the checkpoint of step 4, within a line of the log
            raise Stopped
        return advance(self, *args)  # type: ignore[arg-type]

    advance = Trainer._advance
    monkeypatch.setattr(Trainer, "_advance", stop)
    with pytest.raises(Stopped):
        train(chat_target.model_path, untrained)
    monkeypatch.undo()
    assert Checkpoint.load(untrained / "train" / "checkpoint.pt").step == 4
    resumed = train(chat_target.model_path, untrained)

    assert resumed.step == 6
    assert_equal(resumed, Checkpoint.load(trained_once / "train" / "checkpoint.pt"))
    assert log_of(untrained) == log_of(trained_once)


def test_a_time_limit_stops_with_a_checkpoint_and_exit_code_5(
    chat_target: TinyTarget, untrained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Deadline, "has_passed", property(lambda self: True))
    with pytest.raises(DeadlineError, match="1 of 6 training steps; run the same command again"):
        train(chat_target.model_path, untrained, "--time-limit-s=1")
    assert Checkpoint.load(untrained / "train" / "checkpoint.pt").step == 1


def test_training_lowers_the_loss_at_every_depth(chat_target: TinyTarget, untrained: Path) -> None:
    train(
        chat_target.model_path,
        untrained,
        "--steps=60",
        "--learning-rate=0.01",
        "--log-every=10",
        "--checkpoint-every=60",
    )
    lines = [line for line in log_of(untrained) if not line["held_out"]]
    for first, last in zip(lines[0]["loss"], lines[-1]["loss"], strict=True):
        assert last < 0.9 * first
    assert lines[-1]["chain_length"] > lines[0]["chain_length"]
    curve = (untrained / "train" / "curve.svg").read_text()
    assert curve.startswith("<svg") and curve.count("<polyline") == 6


def test_other_settings_are_refused_and_named(chat_target: TinyTarget, trained: Path) -> None:
    with pytest.raises(ConfigError, match=r"other settings \(learning_rate 0.0006\)"):
        train(chat_target.model_path, trained, "--learning-rate=0.1")


def test_a_finished_run_is_not_trained_again(chat_target: TinyTarget, trained: Path) -> None:
    before = (trained / "train" / "checkpoint.pt").stat().st_mtime_ns
    train(chat_target.model_path, trained)
    assert (trained / "train" / "checkpoint.pt").stat().st_mtime_ns == before


def test_a_full_disk_leaves_the_last_checkpoint(
    chat_target: TinyTarget, trained_once: Path, untrained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves = []

    def save(value: object, path: Path) -> None:
        saves.append(value)
        if len(saves) == 2:
            path.write_bytes(b"half")
            raise RuntimeError("[enforce fail at inline_container.cc] . unexpected pos")
        torch_save(value, path)

    torch_save = torch.save
    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(StorageError, match=r"checkpoint\.pt cannot be written"):
        train(chat_target.model_path, untrained)
    assert Checkpoint.load(untrained / "train" / "checkpoint.pt").step == 2
    assert sorted(path.name for path in (untrained / "train").iterdir()) == ["checkpoint.pt", "curve.svg", "log.jsonl"]
    monkeypatch.undo()
    assert_equal(train(chat_target.model_path, untrained), Checkpoint.load(trained_once / "train" / "checkpoint.pt"))


def test_a_run_that_diverges_says_so(chat_target: TinyTarget, untrained: Path) -> None:
    with pytest.raises(ConfigError, match="diverged before step 2: lower --learning-rate"):
        train(chat_target.model_path, untrained, "--learning-rate=1e30")
    assert not (untrained / "train" / "checkpoint.pt").exists()


def test_a_damaged_checkpoint_is_named(chat_target: TinyTarget, trained: Path) -> None:
    path = trained / "train" / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ConfigError, match=r"checkpoint\.pt is damaged"):
        train(chat_target.model_path, trained)


def test_a_draft_vocabulary_without_an_end_token_is_too_small(chat_target: TinyTarget, untrained: Path) -> None:
    with pytest.raises(ConfigError, match="has none of the target's end tokens"):
        train(chat_target.model_path, untrained, "--draft-vocab-size=1")
    with pytest.raises(ConfigError, match="--draft-vocab-size is 98; the target has 97 tokens"):
        train(chat_target.model_path, untrained, "--draft-vocab-size=98")


@pytest.mark.slow
def test_two_ranks_train_alike_and_log_once(chat_target: TinyTarget, untrained: Path) -> None:
    checkpoint = train(chat_target.model_path, untrained, "--num-gpus=2", "--steps=4")
    assert checkpoint.step == 4
    steps = [line["step"] for line in log_of(untrained) if not line["held_out"]]
    assert steps == [2, 4]
    assert json.loads((untrained / "train" / "log.jsonl").read_text().splitlines()[0])["tokens"] > 256
    with pytest.raises(ConfigError, match="num_gpus 2"):
        train(chat_target.model_path, untrained, "--steps=4")
