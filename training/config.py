"""The flags of ``paceline train-head``, one class a step of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from paceline.config import add_flags, build_parser, flag, parse_values, require, require_folder
from paceline.defaults import DEFAULT_MODEL_PATH
from paceline.errors import ConfigError, InvalidInputError
from paceline.types import TreeShape

STEPS = ("synthesise", "train", "export", "evaluate")
PROG = "paceline train-head"
ConfigT = TypeVar("ConfigT")


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Train an EAGLE-3 head for a target, from nothing: data, training, export, evaluation.

    OUT gets data/, train/, head/ and evaluation.json. Run the same command again to go on. Raises ConfigError.
    """

    out: str = flag(help="folder for everything that is made; the head itself goes to OUT/head")
    model_path: str = flag(DEFAULT_MODEL_PATH, help="folder of the target, or its GGUF file")
    do: tuple[str, ...] = flag(STEPS, help="the steps to do, in this order; one that is done is not done again")
    device: str = flag("auto", help="auto, cpu, cuda or cuda:N")
    kernel_backend: str = flag("auto", help="kernels of the target")
    dtype: str = flag("bfloat16", help="dtype of target and head", choices=("bfloat16", "float32"))
    num_gpus: int = flag(1, help="GPUs that train together; the other steps take one")
    num_threads: int | None = flag(None, help="threads on a CPU; unset: torch's own choice")
    seed: int = flag(0, help="of the data, the first weights and the order")
    rehearse: bool = flag(False, help="go through all steps in small first, in OUT/rehearsal, and stop; see the docs")
    time_limit_s: float | None = flag(None, help="stop after this long, with all that is needed to go on; exit code 5")

    def __post_init__(self) -> None:
        unknown = [name for name in self.do if name not in STEPS]
        require(not unknown and bool(self.do), "do", ",".join(self.do), f"some of {','.join(STEPS)}")
        require(self.num_gpus >= 1, "num_gpus", self.num_gpus, "1 or more")
        require(0 <= self.seed < 2**63, "seed", self.seed, "0 to 2**63 - 1")
        require_folder(self.out, "--out")

    @property
    def folder(self) -> Path:
        return Path(self.out)


@dataclass(frozen=True, slots=True)
class DataConfig:
    """How the conversations are made. Raises ConfigError."""

    tokens: int = flag(26_000_000, help="tokens of data; a larger number later adds to what is there")
    prompts: str = flag("", help="JSON lines with a prompt each, which the target answers; empty: it asks itself")
    conversations: str = flag("", help="JSON lines with messages each, taken as they stand")
    question_temperature: float = flag(1.0, help="of the questions that the target asks itself")
    answer_temperatures: tuple[str, ...] = flag(("0", "0.7", "1"), help="of the answers, taken in equal shares")
    max_question_tokens: int = flag(256, help="a longer question is cut; a longer prompt of --prompts is left out")
    max_answer_tokens: int = flag(512, help="a longer answer is cut")
    seats: int | None = flag(None, help="sequences that decode together; unset: as many as fit, 2048 at most")
    shard_sequences: int = flag(2048, help="sequences of one file of data; what is not yet in a file is lost at a stop")
    held_out_every: int = flag(64, help="every so many conversations one is kept from training, to measure with")

    def __post_init__(self) -> None:
        for name in ("tokens", "max_question_tokens", "max_answer_tokens", "shard_sequences"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        require(self.seats is None or self.seats >= 1, "seats", self.seats, "1 or more")
        require(self.held_out_every >= 2, "held_out_every", self.held_out_every, "2 or more")
        require(bool(self.answer_temperatures), "answer_temperatures", "empty", "at least one number")
        for value in (self.question_temperature, *self.temperatures):
            require(0 <= value < math.inf, "temperature", value, "a finite number, 0 (greedy) or more")
        if self.prompts and self.conversations:
            raise ConfigError("--prompts and --conversations are both given; take one")

    @property
    def temperatures(self) -> tuple[float, ...]:
        return tuple(_number(text, "answer_temperatures") for text in self.answer_temperatures)


@dataclass(frozen=True, slots=True)
class ShapeConfig:
    """Sizes of the head. The rest is the target's. Raises ConfigError."""

    draft_vocab_size: int | None = flag(None, help="tokens that the head can propose, the most frequent ones")
    draft_vocab_coverage: float = flag(0.995, help="instead: as many as make up this share of the data's tokens")
    intermediate_size: int | None = flag(None, help="values of the MLP; unset: the target's")
    init_from: str = flag("", help="folder of a head to start from, its vocabulary and sizes unless set here")

    def __post_init__(self) -> None:
        for name in ("draft_vocab_size", "intermediate_size"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "1 or more")
        require(0 < self.draft_vocab_coverage <= 1, "draft_vocab_coverage", self.draft_vocab_coverage, "0 to 1")


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """How the head is trained. Raises ConfigError."""

    steps: int | None = flag(None, help="optimizer steps; unset: what --epochs takes")
    epochs: float = flag(3.0, help="times that the data is seen")
    batch_tokens: int = flag(16384, help="tokens of a batch on each GPU, padding included")
    sequence_tokens: int = flag(2048, help="a longer conversation is cut")
    depths: int = flag(7, help="draft steps that each position is unrolled over")
    depth_decay: float = flag(0.8, help="weight of a depth's loss, times that of the depth before")
    teach_temperature: float = flag(1.0, help="of the distribution that is taught; below 1 it favours likely tokens")
    question_weight: float = flag(1.0, help="weight of a token of the target's own question, that of an answer being 1")
    learning_rate: float = flag(6e-4, help="at its peak")
    final_rate: float = flag(0.0, help="at the end, as a share of the peak")
    warmup: float = flag(0.02, help="share of the steps over which the rate rises")
    weight_decay: float = flag(0.0, help="AdamW's, of the matrices")
    max_grad_norm: float = flag(0.5, help="a larger gradient is scaled down to this norm")
    checkpoint_every: int = flag(500, help="steps between checkpoints")
    log_every: int = flag(50, help="steps between lines of train/log.jsonl")
    held_out_steps: int = flag(8, help="batches of held-out data measured at each checkpoint")

    def __post_init__(self) -> None:
        for name in ("batch_tokens", "sequence_tokens", "depths", "checkpoint_every", "log_every"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        for name in ("depth_decay", "epochs", "learning_rate", "max_grad_norm", "teach_temperature"):
            require(0 < getattr(self, name) < math.inf, name, getattr(self, name), "a finite number above 0")
        for name in ("question_weight", "weight_decay", "held_out_steps"):
            require(0 <= getattr(self, name) < math.inf, name, getattr(self, name), "a finite number, 0 or more")
        for name in ("final_rate", "warmup"):
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "0 to 1")
        require(self.steps is None or self.steps >= 1, "steps", self.steps, "1 or more")
        require(self.sequence_tokens <= self.batch_tokens, "sequence_tokens", self.sequence_tokens, "a batch at most")


@dataclass(frozen=True, slots=True)
class EvaluationConfig:
    """What accepted length is measured on. Raises ConfigError."""

    eval_prompts: str = flag("", help="JSON lines with prompt and category each, beside the held-out questions")
    eval_count: int = flag(50, help="prompts of each set, spread over it")
    eval_max_prompt_tokens: int = flag(300, help="longer prompts are left out")
    eval_max_tokens: int = flag(96, help="tokens of an answer")
    eval_shapes: str = flag("5,1,6;5,4,16", help="num_steps,eagle_topk,num_draft_tokens of each tree")
    eval_temperatures: tuple[str, ...] = flag(("0", "1"), help="temperatures of the target")
    eval_speed_count: int = flag(4, help="prompts whose tokens a second are measured, one at a time; 0: none")
    compare_head: str = flag("", help="folder of another head to measure on the same prompts")

    def __post_init__(self) -> None:
        for name in ("eval_count", "eval_max_prompt_tokens", "eval_max_tokens"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        require(self.eval_speed_count >= 0, "eval_speed_count", self.eval_speed_count, "0 or more")
        if not self.shapes or not self.temperatures:
            raise ConfigError("--eval-shapes and --eval-temperatures must each name at least one")

    @property
    def shapes(self) -> tuple[TreeShape, ...]:
        return tuple(_shape(text) for text in self.eval_shapes.split(";") if text.strip())

    @property
    def temperatures(self) -> tuple[float, ...]:
        return tuple(_number(text, "eval_temperatures") for text in self.eval_temperatures)


@dataclass(frozen=True, slots=True)
class TrainHeadConfig:
    """All of them."""

    run: RunConfig
    data: DataConfig
    shape: ShapeConfig
    train: TrainConfig
    evaluation: EvaluationConfig


_GROUPS: dict[str, type] = {
    "data": DataConfig,
    "the head's sizes": ShapeConfig,
    "training": TrainConfig,
    "evaluation": EvaluationConfig,
}


def parse(argv: Sequence[str]) -> TrainHeadConfig:
    """--help prints and exits 0. Raises ConfigError for an unknown flag or a bad value."""
    parser = build_parser(RunConfig, prog=PROG)
    for title, cls in _GROUPS.items():
        add_flags(parser.add_argument_group(title), cls)
    values = parse_values(parser, argv)

    def of(cls: type[ConfigT]) -> ConfigT:
        return cls(**{field.name: values[field.name] for field in dataclasses.fields(cls)})  # type: ignore[arg-type]

    return TrainHeadConfig(of(RunConfig), of(DataConfig), of(ShapeConfig), of(TrainConfig), of(EvaluationConfig))


def _shape(text: str) -> TreeShape:
    try:
        num_steps, eagle_topk, num_draft_tokens = (int(part) for part in text.split(","))
        return TreeShape(num_steps, eagle_topk, num_draft_tokens)
    except (ValueError, InvalidInputError) as error:
        raise ConfigError(f"--eval-shapes: {text!r} is no num_steps,eagle_topk,num_draft_tokens: {error}") from error


def _number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"--{name.replace('_', '-')}: {text!r} is no number") from None
