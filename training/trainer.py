"""Trainer: one rank's share of a training run, from its first step or a checkpoint to its last."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.head_config import NUM_AUX
from engine.rope import cos_sin_table
from paceline.errors import ConfigError
from training.adamw import AdamW, learning_rate
from training.batches import Batch, Batches, BatchRules
from training.checkpoint import Checkpoint
from training.config import TrainHeadConfig
from training.corpus import Corpus
from training.curve import draw_curve
from training.files import write_text
from training.first_head import HeadPlan, first_weights
from training.head_network import HeadNetwork
from training.loss_rows import rows_of
from training.meter import Meter
from training.progress import Deadline, Progress
from training.ranks import Ranks
from training.run_log import RunLog
from training.target import Target
from training.teacher import Teacher
from training.unroll import DepthFigures, Unroll, UnrollRules

CHECKPOINT, LOG, CURVE = "checkpoint.pt", "log.jsonl", "curve.svg"


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """What every rank is given."""

    folder: Path  # train/
    config: TrainHeadConfig
    plan: HeadPlan
    settings: dict[str, Any]
    num_steps: int


class Trainer:
    """Goes on from the folder's checkpoint where there is one. Raises ConfigError for one of other settings."""

    def __init__(self, job: TrainingJob, target: Target, corpus: Corpus, ranks: Ranks) -> None:
        train, run = job.config.train, job.config.run
        self._job, self._train, self._ranks = job, train, ranks
        self._batches = make_batches(corpus, job.config)
        self._held_out = held_out_batches(corpus, job.config)
        vocabulary, config = job.plan.vocabulary, job.plan.config
        self._teacher = Teacher(
            target,
            config.aux_layers(target.config.num_layers),
            vocabulary=vocabulary,
            rules=_rules(job.config),
            temperature=train.teach_temperature,
        )
        ends = target.ends()
        # The last chains of a conversation as long as the context go past it, and teach nothing there.
        most = target.config.max_position_embeddings + train.depths
        table = cos_sin_table(config.rope, head_dim=config.head_dim, max_position=most, device=target.device)
        self._unroll = Unroll(
            ends.embedding,
            table,
            vocabulary.draft_ids.to(target.device),
            rules=UnrollRules(train.depths, train.depth_decay),
            rows=rows_of(target.ops),
        )
        self._network = HeadNetwork(config).to(target.device)
        self._optimizer = AdamW(self._network.parameters(), weight_decay=train.weight_decay)
        self._step = 0
        self._log = RunLog(job.folder / LOG)
        self._meter = Meter(self._log, ranks, depths=train.depths, device=target.device)
        checkpoint = load_checkpoint(job.folder, job.settings)
        if checkpoint is None:
            weights = first_weights(job.plan, target, ends, aux_scale=self._aux_scale(), seed=run.seed)
            self._network.load_state_dict(weights)
            with torch.no_grad():
                ranks.average(self._network.parameters())
        else:
            self._restore(checkpoint)

    def run(self, deadline: Deadline) -> None:
        """To the last step. Raises StorageError, DeadlineError: the folder then holds all that was done."""
        ranks, num_steps = self._ranks, self._job.num_steps
        if ranks.is_first:
            self._log.cut(self._step)
        batches = self._batches.from_number(self._step * ranks.size + ranks.rank, ranks.size)
        progress = Progress("train", total=num_steps, start=self._step, unit="steps") if ranks.is_first else None
        try:
            while self._step < num_steps:
                is_over = self._advance(next(batches), deadline)
                if progress is not None:
                    progress.advance(1, self._meter.note)
                if is_over and self._step < num_steps:
                    deadline.check(f"{self._step} of {num_steps} training steps")
        finally:
            if progress is not None:
                progress.close(self._meter.note)

    def _advance(self, batch: Batch, deadline: Deadline) -> bool:
        """One optimizer step, logged and kept where that is due. Returns whether the time is over, for all ranks."""
        train, num_steps = self._train, self._job.num_steps
        rate = learning_rate(
            self._step, num_steps, peak=train.learning_rate, warmup=train.warmup, final=train.final_rate
        )
        unrolled = self._unroll.run(self._network, self._teacher.teach(batch))
        unrolled.loss.backward()
        self._ranks.average(weight.grad for weight in self._network.parameters() if weight.grad is not None)
        norm = self._optimizer.step(rate, max_norm=train.max_grad_norm)
        self._step += 1
        self._meter.add(unrolled.sums, int(batch.lengths.sum()) * self._ranks.size)

        is_last = self._step == num_steps
        is_logged = self._step % train.log_every == 0 or is_last
        # Ranks agree by a wait for the device, so several of them ask now and then only.
        asks = is_logged or self._ranks.size == 1
        is_over = asks and self._ranks.any(deadline.has_passed, norm.device)
        if is_logged:
            self._meter.write(self._step, learning_rate=rate, grad_norm=float(norm))
        if self._step % train.checkpoint_every == 0 or is_last or is_over:
            self._keep(float(norm))
        return is_over

    def _keep(self, grad_norm: float) -> None:
        """Writes a checkpoint, after the held-out data are measured. Raises ConfigError for a run that diverged."""
        if not math.isfinite(grad_norm):
            raise ConfigError(
                f"training diverged before step {self._step}: lower --learning-rate and remove {self._job.folder}, "
                "or go on from its last checkpoint"
            )
        if not self._ranks.is_first:
            return
        if self._held_out is not None and self._train.held_out_steps:
            self._log.add(self._step, self._measure(self._held_out), held_out=True)
        network = {name: value.detach().cpu() for name, value in self._network.state_dict().items()}
        Checkpoint(
            step=self._step,
            num_tokens=self._meter.num_tokens,
            config=self._job.plan.config,
            target_ids=self._job.plan.vocabulary.target_ids,
            settings=self._job.settings,
            weights=network,
            optimizer=self._optimizer.state(),
            sums=self._meter.sums.cpu(),
        ).save(self._job.folder / CHECKPOINT)
        write_text(self._job.folder / CURVE, draw_curve(self._log.lines()))

    @torch.no_grad()
    def _measure(self, held_out: Batches) -> DepthFigures:
        sums = torch.zeros_like(self._meter.sums)
        for batch in islice(held_out.from_number(0, 1), self._train.held_out_steps):
            sums += self._unroll.run(self._network, self._teacher.teach(batch)).sums
        return DepthFigures.of(sums)

    def _restore(self, checkpoint: Checkpoint) -> None:
        self._step = checkpoint.step
        self._network.load_state_dict(checkpoint.weights)
        self._optimizer.restore(checkpoint.optimizer)
        self._meter.restore(checkpoint.sums, checkpoint.num_tokens)

    def _aux_scale(self) -> Tensor:
        """[3] fp32 on the CPU: the median over tokens, for a conversation's first one is often far from the rest."""
        batch = next(self._batches.from_number(0, 1))
        aux = self._teacher.teach(batch).aux.unflatten(-1, (NUM_AUX, -1))
        is_token = torch.from_numpy(np.arange(batch.tokens.shape[1]) < batch.lengths[:, None]).to(aux.device)
        return aux[is_token].float().square().mean(-1).sqrt().median(dim=0).values.cpu()


def make_batches(corpus: Corpus, config: TrainHeadConfig) -> Batches:
    """Of what is trained on. Raises ConfigError where everything is held out."""
    trained, _ = corpus.split(config.data.held_out_every)
    if len(trained) == 0:
        raise ConfigError(f"the data hold {len(corpus)} conversations, all held out: make more, by --tokens")
    return Batches(corpus, trained, _rules(config))


def held_out_batches(corpus: Corpus, config: TrainHeadConfig) -> Batches | None:
    """None where nothing is held out."""
    _, held_out = corpus.split(config.data.held_out_every)
    return Batches(corpus, held_out, _rules(config)) if len(held_out) else None


def _rules(config: TrainHeadConfig) -> BatchRules:
    train = config.train
    return BatchRules(train.batch_tokens, train.sequence_tokens, train.question_weight, config.run.seed)


def load_checkpoint(folder: Path, settings: Mapping[str, Any]) -> Checkpoint | None:
    """None where there is none. Raises ConfigError for a damaged one, and for one of other settings."""
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    checkpoint = Checkpoint.load(path)
    there = checkpoint.settings
    other = sorted(name for name in {*there, *settings} if there.get(name) != settings.get(name))
    if other:
        names = ", ".join(f"{name} {there.get(name)!r}" for name in other)
        raise ConfigError(
            f"{folder} holds a run with other settings ({names}): give the same flags again, remove the folder, or "
            "name another --out"
        )
    return checkpoint
