"""Accepted length of heads, in process: what is measured, told and kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from engine.reference_loop import InProcess
from paceline.errors import ConfigError, ModelLoadError
from paceline.types import SamplingParams, TreeShape
from tests.support.tiny_target import TinyTarget
from tests.support.tiny_training import small_config
from training.comparison import figures_table
from training.evaluation import Evaluation, EvaluationRow
from training.pipeline import Pipeline


def prompts_file(folder: Path) -> Path:
    file = folder / "mine.jsonl"
    lines = [{"prompt": f"w{i} w{i + 3}", "category": "odd" if i % 2 else "even"} for i in range(10, 16)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def evaluate(model_path: Path, out: Path, *flags: str) -> list[EvaluationRow]:
    Pipeline(small_config(model_path, out, "--do=evaluate", *flags)).run()
    rows = json.loads((out / "evaluation.json").read_text())["rows"]
    return [EvaluationRow(**{**row, "shape": tuple(row["shape"])}) for row in rows]


def test_rows_are_what_the_in_process_loop_accepts_by_category(
    chat_target: TinyTarget, trained: Path, tmp_path: Path
) -> None:
    flags = (
        f"--eval-prompts={prompts_file(tmp_path)}",
        "--eval-count=6",
        "--eval-shapes=2,2,5",
        "--eval-temperatures=1",
    )
    rows = evaluate(chat_target.model_path, trained, *flags)
    assert [(row.set_name, row.category) for row in rows] == [
        ("held-out questions", ""),
        ("mine", "even"),
        ("mine", "odd"),
    ]
    model = InProcess(chat_target.model_path, trained / "head", torch.float32, num_threads=1)
    prompt = [1, 4, 11, 14, 2, 1, 5]
    (row,) = (row for row in rows if row.category == "odd")
    assert row.prompts == 3
    lengths = [
        n
        for place, token in ((1, 11), (3, 13), (5, 15))
        for n in model.generate(
            [*prompt[:2], token, token + 3, *prompt[4:]],
            SamplingParams(max_tokens=6, temperature=1.0, seed=rows[0].prompts + place),
            TreeShape(2, 2, 5),
        ).accept_lengths
    ]
    assert (row.rounds, row.accepted) == (len(lengths), sum(lengths))


def test_what_is_measured_is_not_measured_again(
    chat_target: TinyTarget, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate(chat_target.model_path, trained, "--eval-temperatures=0")
    monkeypatch.setattr(Evaluation, "_measure", lambda *_, **__: pytest.fail("measured again"))
    evaluate(chat_target.model_path, trained, "--eval-temperatures=0")
    with pytest.raises(pytest.fail.Exception):
        evaluate(chat_target.model_path, trained, "--eval-temperatures=0,0.5")


def test_a_damaged_file_of_figures_is_named(chat_target: TinyTarget, trained: Path) -> None:
    (trained / "evaluation.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"evaluation\.json is damaged \('settings'\)"):
        evaluate(chat_target.model_path, trained)


def test_the_card_tells_data_training_and_figures(chat_target: TinyTarget, trained: Path) -> None:
    rows = evaluate(chat_target.model_path, trained, "--eval-shapes=2,1,3", "--eval-temperatures=0")
    card = (trained / "head" / "README.md").read_text()
    assert f"| held-out questions | all | 0 | (2, 1, 3) | {rows[0].accepted_length:.3f} |" in card
    assert (
        "6 steps over" in card and "the target's own questions and answers" in card and "learning_rate = 0.0006" in card
    )


def test_two_heads_stand_side_by_side(
    chat_target: TinyTarget, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--eval-shapes=2,1,3", "--eval-temperatures=0", "--eval-speed-count=1")
    flags += (f"--compare-head={chat_target.head_path}",)
    rows = evaluate(chat_target.model_path, trained, *flags)
    assert len({row.head for row in rows}) == 2
    table = (trained / "comparison.md").read_text()
    assert table in capsys.readouterr().out
    mine, other = (row.accepted_length for row in rows)
    assert f"| {mine:.3f} | {other:.3f} | {mine / other:.3f} |" in table
    speeds = json.loads((trained / "evaluation.json").read_text())["speeds"]
    gains = [f"{speed['tokens_per_s'] / speed['plain_tokens_per_s']:.2f}" for speed in speeds]
    assert f"| {' | '.join(gains)} |" in table and table.count("(2, 1, 3)") == 2


def test_categories_join_by_rounds() -> None:
    def row(category: str, rounds: int, accepted: int) -> EvaluationRow:
        return EvaluationRow("a", (5, 1, 6), 0.0, "mine", category, 1, rounds, accepted)

    table = figures_table([row("qa", 10, 20), row("maths", 30, 20)], "a")
    assert "| mine | all | 0 | (5, 1, 6) | 2.000 |\n| mine | qa | 0 | (5, 1, 6) | 3.000 |" in table


def test_a_head_of_another_target_or_none_is_refused(chat_target: TinyTarget, trained: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no head in"):
        evaluate(chat_target.model_path, tmp_path / "empty")
    config = trained / "head" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "target_hidden_size": 33}))
    with pytest.raises(ModelLoadError, match="hidden size 33"):
        evaluate(chat_target.model_path, trained)
