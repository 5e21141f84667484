"""The steps of ``paceline train-head``, each of which goes on where it stopped."""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from paceline.errors import ConfigError
from training.checkpoint import Checkpoint
from training.comparison import figures_table, speed_table
from training.config import TrainHeadConfig
from training.corpus import Corpus
from training.corpus_report import corpus_report
from training.evaluation import Evaluation, evaluation_prompts
from training.export import CARD, WEIGHTS, export_head, head_config_json
from training.files import read_json, write_json, write_text
from training.first_head import HeadPlan
from training.model_card import model_card, with_figures
from training.progress import Deadline, told
from training.ranks import Ranks, run_ranks
from training.shards import ShardIndex
from training.synthesis import synthesise
from training.target import Target, fitting
from training.trainer import CHECKPOINT, Trainer, TrainingJob, load_checkpoint, make_batches

_REPORT = "report.json"
_DATA_SETTINGS = (
    "source",
    "question_temperature",
    "answer_temperatures",
    "max_question_tokens",
    "max_answer_tokens",
)


class Pipeline:
    """Of one output folder: data/, train/, head/, evaluation.json."""

    def __init__(self, config: TrainHeadConfig) -> None:
        """Raises ConfigError or ModelLoadError."""
        self._config = config
        self._folder = config.run.folder
        self._target = Target.of(config.run)
        self._deadline = Deadline(config.run.time_limit_s)

    def run(self) -> None:
        """Raises the PacelineErrors of the steps; what was done before stays."""
        steps = {
            "synthesise": self._synthesise,
            "train": self._train,
            "export": self._export,
            "evaluate": self._evaluate,
        }
        for name, step in steps.items():
            if name in self._config.run.do:
                with told(name, self._target.device):
                    step()
                # A model and its captured graphs refer to each other, and the next step needs their memory.
                gc.collect()
                if self._target.device.type == "cuda":
                    torch.cuda.empty_cache()

    @property
    def head_folder(self) -> Path:
        return self._folder / "head"

    def _synthesise(self) -> None:
        run = self._config.run
        index = synthesise(
            self._folder / "data", self._target, self._config.data, seed=run.seed, deadline=self._deadline
        )
        print(json.dumps(self._report(index), indent=2))

    def _train(self) -> None:
        config, folder = self._config, self._folder / "train"
        index = ShardIndex.existing(self._folder / "data")
        self._check_data(index)
        corpus = Corpus.read(index)
        plan = self._plan(corpus)
        # What could not be exported is refused before it is trained.
        self._head_config(plan)
        plan.vocabulary.check_ends(self._target.config.eos_token_ids)
        settings = self._settings(corpus, index)
        num_steps = self._num_steps(corpus)
        checkpoint = load_checkpoint(folder, settings)
        if checkpoint is not None and checkpoint.step >= num_steps:
            return
        job = TrainingJob(folder, config, plan, settings, num_steps)
        size = config.run.num_gpus
        backend = "nccl" if self._target.device.type == "cuda" else "gloo"
        run_ranks(partial(train_rank, job, self._deadline), size, backend=backend)

    def _export(self) -> None:
        path = self._folder / "train" / CHECKPOINT
        if not path.exists():
            raise ConfigError(f"there is no {path}: train first (--do synthesise,train,export)")
        checkpoint = Checkpoint.load(path)
        report = self._report(ShardIndex.existing(self._folder / "data"))
        card = model_card(checkpoint, target=self._target.path.resolve().name, data=report)
        context_length, dtype = self._target.config.max_position_embeddings, self._target.dtype
        export_head(self.head_folder, checkpoint, context_length=context_length, dtype=dtype, card=card)
        print(f"{self.head_folder}: written, {checkpoint.step:,} steps", file=sys.stderr)

    def _evaluate(self) -> None:
        if not (self.head_folder / WEIGHTS).exists():
            raise ConfigError(f"there is no head in {self.head_folder}: train and export first")
        evaluation, data = self._config.evaluation, self._folder / "data"
        corpus = Corpus.read(ShardIndex.existing(data)) if data.exists() else None
        prompts = evaluation_prompts(
            self._target, corpus, evaluation=evaluation, held_out_every=self._config.data.held_out_every
        )
        measured = Evaluation(self._folder / "evaluation.json", self._target, evaluation, prompts)
        head = measured.measure(self.head_folder, deadline=self._deadline)
        figures = _tables(measured, head)
        card = self.head_folder / CARD
        if card.exists():
            write_text(card, with_figures(card.read_text(encoding="utf-8"), figures))
        if evaluation.compare_head:
            other = measured.measure(Path(evaluation.compare_head), deadline=self._deadline)
            figures = _tables(measured, head, other)
            write_text(self._folder / "comparison.md", figures)
        print(figures, end="")

    def _report(self, index: ShardIndex) -> dict[str, Any]:
        """Of the data, made anew where there are more of them than it tells of."""
        path = index.folder / _REPORT
        if path.exists():
            report: dict[str, Any] = read_json(path)
            if report.get("tokens") == index.num_tokens:
                return report
        report = corpus_report(Corpus.read(index), index.entries, self._target.config.vocab_size)
        write_json(path, report)
        return report

    def _check_data(self, index: ShardIndex) -> None:
        """Raises ConfigError for data of another target: its tokens and its words are not this one's."""
        if index.settings["target"] != self._target.fingerprint():
            raise ConfigError(f"{index.folder} was made with another target than --model-path: name another --out")

    def _plan(self, corpus: Corpus) -> HeadPlan:
        return HeadPlan.of(self._target.config, self._config.shape, corpus)

    def _head_config(self, plan: HeadPlan) -> None:
        head_config_json(
            plan.config, context_length=self._target.config.max_position_embeddings, dtype=self._target.dtype
        )

    def _num_steps(self, corpus: Corpus) -> int:
        train = self._config.train
        if train.steps is not None:
            return train.steps
        batches = make_batches(corpus, self._config).in_epoch(0)
        return max(1, round(train.epochs * batches / self._config.run.num_gpus))

    def _settings(self, corpus: Corpus, index: ShardIndex) -> dict[str, Any]:
        """All that a training run depends on, as JSON."""
        run = self._config.run
        settings = {
            "target": self._target.fingerprint(),
            **{name: index.settings[name] for name in _DATA_SETTINGS},
            "conversations": len(corpus),
            "data_tokens": len(corpus.tokens),
            "held_out_every": self._config.data.held_out_every,
            "dtype": run.dtype,
            "seed": run.seed,
            "num_gpus": run.num_gpus,
            **asdict(self._config.shape),
            **asdict(self._config.train),
        }
        normal: dict[str, Any] = json.loads(json.dumps(settings))
        return normal


def _tables(measured: Evaluation, head: str, other: str = "") -> str:
    tables = (figures_table(measured.rows, head, other), speed_table(measured.speeds, head, other))
    return "\n".join(filter(None, tables))


def train_rank(job: TrainingJob, deadline: Deadline, ranks: Ranks) -> None:
    """One rank's whole training. Raises what Trainer raises."""
    run = job.config.run
    device = None if ranks.size == 1 or run.device == "cpu" else f"cuda:{ranks.rank}"
    target = Target.of(run, device)
    with fitting(target.device, "lower --batch-tokens"):
        corpus = Corpus.read(ShardIndex.existing(job.folder.parent / "data"))
        Trainer(job, target, corpus, ranks).run(deadline)
