"""Evaluation: accepted length per round of a head, in process, by category, tree and temperature; and its speed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from engine.head_config import load_head_config
from engine.reference_loop import InProcess
from engine.weights import fingerprint
from paceline.errors import ConfigError
from paceline.prompt_file import read_prompts
from paceline.types import SamplingParams, TreeShape
from training.batch_rounds import BatchRounds, Rounds
from training.config import EvaluationConfig
from training.corpus import Corpus
from training.files import read_json, write_json
from training.progress import Deadline, Progress
from training.speed import SpeedMeter, SpeedRow
from training.target import Target

HELD_OUT = "held-out questions"
ALL = "all"
_SEATS = {"cuda": 128, "cpu": 8}  # prompts that decode together
ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class EvaluationPrompt:
    """category: "" where its line named none."""

    set_name: str
    category: str
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """One category of one set at one tree and temperature. Sums, so that rows can be joined."""

    head: str  # its fingerprint
    shape: tuple[int, int, int]  # num_steps, eagle_topk, num_draft_tokens
    temperature: float
    set_name: str
    category: str
    prompts: int
    rounds: int
    accepted: int  # drafts, without the extra token of each round

    @property
    def accepted_length(self) -> float:
        return 1 + self.accepted / self.rounds if self.rounds else 0.0


def evaluation_prompts(
    target: Target, corpus: Corpus | None, *, evaluation: EvaluationConfig, held_out_every: int
) -> list[EvaluationPrompt]:
    """The held-out questions of the data, and those of --eval-prompts: eval_count of each, spread over it.

    Raises InvalidInputError for a bad file, ConfigError where there is no prompt at all.
    """
    limit = min(evaluation.eval_max_prompt_tokens, target.config.max_position_embeddings - 1)
    count = evaluation.eval_count
    prompts: list[EvaluationPrompt] = []
    if corpus is not None:
        _, held_out = corpus.split(held_out_every)
        fitting = [ids for ids in corpus.prompts(held_out) if len(ids) <= limit]
        prompts += [EvaluationPrompt(HELD_OUT, "", ids) for ids in _spread(fitting, count)]
    if evaluation.eval_prompts:
        chat = target.chat()
        lines = read_prompts(evaluation.eval_prompts)
        rendered = [(line.category, chat.prompt_ids([{"role": "user", "content": line.text}])) for line in lines]
        name = Path(evaluation.eval_prompts).stem
        short = [(category, ids) for category, ids in rendered if len(ids) <= limit]
        prompts += [EvaluationPrompt(name, category, ids) for category, ids in _spread(short, count)]
    if not prompts:
        raise ConfigError(f"no prompt of at most {limit} tokens to measure with: pass --eval-prompts, or more data")
    return prompts


class Evaluation:
    """evaluation.json: figures of any number of heads. What it holds is not measured again."""

    def __init__(
        self, path: Path, target: Target, evaluation: EvaluationConfig, prompts: Sequence[EvaluationPrompt]
    ) -> None:
        """Raises ConfigError for a damaged file. One of other settings or prompts is begun anew."""
        self._path, self._target, self._evaluation, self._prompts = path, target, evaluation, prompts
        self._settings = {
            "target": target.fingerprint(),
            "max_tokens": evaluation.eval_max_tokens,
            "prompts": hashlib.sha256(repr([astuple(prompt) for prompt in prompts]).encode()).hexdigest(),
        }
        self.rows: list[EvaluationRow] = []
        self.speeds: list[SpeedRow] = []
        if path.exists():
            self._read()

    def measure(self, head_path: Path, *, deadline: Deadline) -> str:
        """Adds what is missing of a head, and returns its fingerprint.

        Raises ModelLoadError, StorageError, DeadlineError.
        """
        load_head_config(head_path).check_target(self._target.config, str(head_path))
        head = fingerprint(head_path)
        missing, slow = self._missing(head), self._missing_speeds(head)
        if not missing and not slow:
            return head
        target = self._target
        model = InProcess(target.path, head_path, target.dtype, backend=target.ops.name, device=str(target.device))
        total = len(missing) * len(self._prompts)
        progress = Progress(f"evaluate {head_path.name}", total=total, start=0, unit="prompts")
        try:
            for shape, temperature in missing:
                self.rows += self._measure(model, head, shape, temperature=temperature, progress=progress)
                self._write()
                deadline.check(f"{len(self.rows)} rows of figures")
        finally:
            progress.close()
        if slow:
            prompts = [prompt.tokens for prompt in _spread(self._prompts, self._evaluation.eval_speed_count)]
            meter = SpeedMeter(model, prompts, max_tokens=self._evaluation.eval_max_tokens)
            self.speeds += meter.measure(head, slow)
            self._write()
        return head

    def _missing(self, head: str) -> list[tuple[TreeShape, float]]:
        have = {(row.shape, row.temperature) for row in self.rows if row.head == head}
        wanted = [(s, t) for s in self._evaluation.shapes for t in self._evaluation.temperatures]
        return [(s, t) for s, t in wanted if (_numbers(s), t) not in have]

    def _missing_speeds(self, head: str) -> list[TreeShape]:
        if not self._evaluation.eval_speed_count:
            return []
        have = {row.shape for row in self.speeds if row.head == head}
        return [shape for shape in self._evaluation.shapes if _numbers(shape) not in have]

    def _measure(
        self, model: InProcess, head: str, shape: TreeShape, *, temperature: float, progress: Progress
    ) -> list[EvaluationRow]:
        assert model.head is not None
        config, most = model.target.config, self._evaluation.eval_max_tokens
        rounds = []
        for seed, prompt in enumerate(self._prompts):
            limit = min(most, config.max_position_embeddings - len(prompt.tokens))
            params = SamplingParams(limit, temperature, seed=seed, stop_token_ids=config.eos_token_ids)
            rounds.append(Rounds(np.array(prompt.tokens, np.int32), params))
        batch = BatchRounds(
            model.target,
            model.head,
            num_seats=min(_SEATS[self._target.device.type], len(rounds)),
            max_tokens=max(len(one.prompt) + one.params.max_tokens for one in rounds),
        )
        batch.run(rounds, shape, on_end=lambda _: progress.advance(1))
        sums: dict[tuple[str, str], np.ndarray] = {}
        for prompt, one in zip(self._prompts, rounds, strict=True):
            part = sums.setdefault((prompt.set_name, prompt.category), np.zeros(3, np.int64))
            part += (1, len(one.accept_lengths), sum(one.accept_lengths))
        return [EvaluationRow(head, _numbers(shape), temperature, *key, *map(int, part)) for key, part in sums.items()]

    def _read(self) -> None:
        value = read_json(self._path)
        try:
            if value["settings"] != self._settings:
                return
            self.rows = [EvaluationRow(**{**row, "shape": tuple(row["shape"])}) for row in value["rows"]]
            self.speeds = [SpeedRow(**{**row, "shape": tuple(row["shape"])}) for row in value["speeds"]]
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{self._path} is damaged ({error}): remove it, and measure again") from error

    def _write(self) -> None:
        rows, speeds = map(asdict, self.rows), map(asdict, self.speeds)
        write_json(self._path, {"settings": self._settings, "rows": list(rows), "speeds": list(speeds)})


def joined(rows: Iterable[EvaluationRow]) -> dict[str, EvaluationRow]:
    """Rows of one head, tree, temperature and set: by category, and ALL of them first."""
    by_category: dict[str, EvaluationRow] = {}
    for row in rows:
        for category in dict.fromkeys((ALL, row.category or ALL)):
            before = by_category.get(category)
            by_category[category] = replace(row, category=category) if before is None else _sum(before, row)
    return by_category


def _sum(one: EvaluationRow, other: EvaluationRow) -> EvaluationRow:
    return replace(
        one,
        prompts=one.prompts + other.prompts,
        rounds=one.rounds + other.rounds,
        accepted=one.accepted + other.accepted,
    )


def _numbers(shape: TreeShape) -> tuple[int, int, int]:
    return shape.num_steps, shape.eagle_topk, shape.num_draft_tokens


def _spread(items: Sequence[ItemT], count: int) -> list[ItemT]:
    """count of them at even distances; all where there are no more."""
    if count >= len(items):
        return list(items)
    return [items[i * len(items) // count] for i in range(count)]
