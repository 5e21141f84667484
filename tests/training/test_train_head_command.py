"""``paceline train-head`` as a user calls it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from client.cli import main
from tests.support.tiny_target import TinyTarget
from tests.support.tiny_training import SMALL_FLAGS, become, save_chat_target, small_config
from training import __main__ as command
from training.pipeline import Pipeline

SMALL = ("--device=cpu", "--dtype=float32", "--num-threads=1", "--seats=8")


def test_one_command_makes_data_head_figures_and_card(
    chat_target: TinyTarget, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Pipeline(small_config(chat_target.model_path, tmp_path / "out", "--eval-shapes=2,1,3")).run()
    names = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert [name for name in names if "shard" not in name] == [
        "data/index.json",
        "data/report.json",
        "evaluation.json",
        "head/README.md",
        "head/config.json",
        "head/model.safetensors",
        "train/checkpoint.pt",
        "train/curve.svg",
        "train/log.jsonl",
    ]
    told = capsys.readouterr()
    assert '"conversations": 47' in told.out and "| held-out questions | all | 0 |" in told.out
    assert "synthesise: " in told.err and "tokens/s" in told.err


@pytest.mark.parametrize(("architecture", "dtype"), [("qwen2", "float32"), ("qwen3", "bfloat16")])
def test_qwen_targets_get_heads_and_bfloat16_trains(tmp_path: Path, architecture: str, dtype: str) -> None:
    model_path, out = save_chat_target(tmp_path).model_path, tmp_path / "out"
    become(model_path, architecture)
    flags = ("--tokens=400", "--steps=30", "--checkpoint-every=30", "--learning-rate=0.01", f"--dtype={dtype}")
    Pipeline(small_config(model_path, out, *flags, "--eval-shapes=2,1,3", "--eval-temperatures=0")).run()
    lines = [json.loads(line) for line in (out / "train" / "log.jsonl").read_text().splitlines()]
    assert all(last < 0.9 * first for first, last in zip(lines[0]["loss"], lines[-2]["loss"], strict=True))
    weights = load_file(out / "head" / "model.safetensors")
    assert {str(weights[name].dtype) for name in weights if name.endswith(".weight")} == {f"torch.{dtype}"}
    assert json.loads((out / "evaluation.json").read_text())["rows"][0]["rounds"] > 0


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (("--out=x", "--tokens=0"), 2, "--tokens is 0; it must be 1 or more"),
        (("--out=x", "--do=train,fly"), 2, "--do is train,fly"),
        (("--out=x", "--answer-temperatures=warm"), 2, "'warm' is no number"),
        (("--out=x", "--eval-shapes=5,1"), 2, "'5,1' is no num_steps,eagle_topk,num_draft_tokens"),
        (("--out=x", "--prompts=a", "--conversations=b"), 2, "take one"),
        (("--tokens=5",), 2, "--out"),
        ((f"--out={__file__}/x",), 2, "is a file; name a folder"),
        (("--out=x", "--model-path=/nowhere"), 3, "no model at /nowhere"),
        (("--out=x", "--do=train", *SMALL), 2, "make data first"),
        (("--out=x", "--do=export", *SMALL), 2, "train first"),
    ],
)
def test_bad_flags_end_with_one_line_and_no_folder(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.main(flags) == code
    told = [line for line in capsys.readouterr().err.splitlines() if " INFO training " not in line]
    assert len(told) == 1 and told[0].startswith("paceline train-head: ") and message in told[0]
    assert not (tmp_path / "x").exists()


def test_the_paceline_command_knows_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "train-head" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_killed_in_each_step_ends_as_one_that_was_not(chat_target: TinyTarget, tmp_path: Path) -> None:
    flags = ("--steps=30", "--checkpoint-every=1", "--eval-shapes=2,1,3", "--eval-temperatures=0,1")
    Pipeline(small_config(chat_target.model_path, tmp_path / "whole", *flags)).run()
    out = tmp_path / "killed"
    for name in ("data/index.json", "train/checkpoint.pt", "head/config.json", "evaluation.json"):
        process = start(chat_target.model_path, out, *flags)
        try:
            while not (out / name).exists():
                assert process.poll() is None
                time.sleep(0.002)
        finally:
            process.kill()
        assert process.wait() == -signal.SIGKILL
    process = start(chat_target.model_path, out, *flags)
    assert process.wait() == 0
    for name in (
        "train/checkpoint.pt",
        "head/model.safetensors",
        "head/README.md",
        "evaluation.json",
        "data/report.json",
    ):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert not [path for path in out.rglob("*") if path.suffix in (".part", ".old")]


def start(model_path: Path, out: Path, *flags: str) -> subprocess.Popen[bytes]:
    """The command with the flags of ``small_config``."""
    every = [f"--model-path={model_path}", f"--out={out}", *SMALL_FLAGS, *flags]
    return subprocess.Popen([sys.executable, "-m", "training", *every], cwd=Path(__file__).resolve().parents[2])


@pytest.mark.parametrize("step", ["synthesise", "train"])
def test_a_time_limit_ends_with_5_and_the_same_command_goes_on(
    chat_target: TinyTarget, tmp_path: Path, capsys: pytest.CaptureFixture[str], step: str
) -> None:
    flags = [f"--model-path={chat_target.model_path}", f"--out={tmp_path}", *SMALL_FLAGS, "--tokens=400"]
    if step == "train":
        assert command.main([*flags, "--do=synthesise"]) == 0
    assert command.main([*flags, f"--do={step}", "--time-limit-s=0"]) == 5
    assert "stopped after --time-limit-s 0 with" in capsys.readouterr().err
    assert command.main([*flags, "--do=synthesise,train,export"]) == 0
    assert (tmp_path / "head" / "model.safetensors").exists()


def test_a_rehearsal_goes_through_all_steps_beside_the_real_run(
    chat_target: TinyTarget, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [f"--model-path={chat_target.model_path}", f"--out={tmp_path}", *SMALL_FLAGS, "--tokens=400"]
    assert command.main([*flags, "--eval-shapes=2,1,3", "--rehearse"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["rehearsal"]
    assert (tmp_path / "rehearsal" / "evaluation.json").exists()
    told = capsys.readouterr().err
    for step in ("synthesise", "train", "export", "evaluate"):
        assert f"{step}: done in " in told


@pytest.mark.slow
def test_ctrl_c_ends_with_130_and_whole_files(chat_target: TinyTarget, tmp_path: Path) -> None:
    out = tmp_path / "out"
    flags = [f"--out={out}", f"--model-path={chat_target.model_path}", *SMALL, "--shard-sequences=8"]
    process = subprocess.Popen(
        [sys.executable, "-m", "training", *flags, "--max-question-tokens=12", "--max-answer-tokens=20"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
    )
    index = out / "data" / "index.json"
    while not index.exists():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted; run the same command again to go on" in told
    files = {entry["file"] for entry in json.loads(index.read_text())["shards"]}
    assert files <= {path.name for path in index.parent.iterdir()}
    assert not list(index.parent.glob("*.part"))
