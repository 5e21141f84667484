"""A rehearsal: every step of a run in small, with all that decides its speed and memory as it will be."""

from __future__ import annotations

import shutil
from dataclasses import replace

from training.config import TrainHeadConfig

_FOLDER = "rehearsal"


def rehearsal_of(config: TrainHeadConfig) -> TrainHeadConfig:
    """The same seats, lengths, batches, depths and trees, fewer of them, in a new folder OUT/rehearsal.

    A minute on a GPU, kernels compiled, which the real run then finds in Triton's cache.
    """
    out = config.run.folder / _FOLDER
    data, train, evaluation = config.data, config.train, config.evaluation
    return TrainHeadConfig(
        run=replace(config.run, out=str(out), rehearse=False),
        data=replace(data, tokens=min(data.tokens, 400_000), shard_sequences=min(data.shard_sequences, 256)),
        shape=config.shape,
        train=replace(train, steps=40, checkpoint_every=20, log_every=10, held_out_steps=1),
        evaluation=replace(
            evaluation,
            eval_count=min(evaluation.eval_count, 16),
            eval_speed_count=min(evaluation.eval_speed_count, 1),
        ),
    )


def clear(config: TrainHeadConfig) -> None:
    """Removes what an earlier rehearsal left."""
    if config.run.folder.exists():
        shutil.rmtree(config.run.folder)
