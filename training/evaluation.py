"""Evaluation: accepted length per round of a head, in process, by category, tree and temperature."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import TypeVar

from engine.head_config import load_head_config
from engine.reference_loop import InProcess
from engine.weights import fingerprint
from paceline.errors import ConfigError
from paceline.types import SamplingParams, TreeShape
from training.chat_files import read_prompts
from training.config import EvaluationConfig
from training.corpus import Corpus
from training.files import read_json, write_json
from training.progress import Deadline, Progress
from training.target import Target

HELD_OUT = "held-out questions"
ALL = "all"
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
    seconds: float

    @property
    def accepted_length(self) -> float:
        return 1 + self.accepted / self.rounds if self.rounds else 0.0


def evaluation_prompts(
    target: Target, corpus: Corpus | None, *, evaluation: EvaluationConfig, held_out_every: int
) -> list[EvaluationPrompt]:
    """The held-out questions of the data, and those of --eval-prompts: eval_count of each, spread over it.

    Raises InvalidInputError for a bad file, ConfigError where there is no prompt at all.
    """
    limit, count = evaluation.eval_max_prompt_tokens, evaluation.eval_count
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
    """evaluation.json: rows of any number of heads. What it holds is not measured again."""

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
        if path.exists():
            self.rows = self._read()

    def measure(self, head_path: Path, *, deadline: Deadline) -> str:
        """Adds what is missing of a head, and returns its fingerprint.

        Raises ModelLoadError, StorageError, DeadlineError.
        """
        load_head_config(head_path).check_target(self._target.config, str(head_path))
        head = fingerprint(head_path)
        have = {(row.shape, row.temperature) for row in self.rows if row.head == head}
        wanted = [(s, t) for s in self._evaluation.shapes for t in self._evaluation.temperatures]
        missing = [(s, t) for s, t in wanted if (_numbers(s), t) not in have]
        if not missing:
            return head
        target = self._target
        model = InProcess(target.path, head_path, target.dtype, backend=target.ops.name, device=str(target.device))
        progress = Progress(
            f"evaluate {head_path.name}", total=len(missing) * len(self._prompts), start=0, unit="prompts"
        )
        try:
            for shape, temperature in missing:
                self.rows += self._measure(model, head, shape, temperature=temperature, progress=progress)
                self._write()
                deadline.check(f"{len(self.rows)} rows of figures")
        finally:
            progress.close()
        return head

    def _measure(
        self, model: InProcess, head: str, shape: TreeShape, *, temperature: float, progress: Progress
    ) -> list[EvaluationRow]:
        sums: dict[tuple[str, str], list[float]] = {}
        for seed, prompt in enumerate(self._prompts):
            params = SamplingParams(max_tokens=self._evaluation.eval_max_tokens, temperature=temperature, seed=seed)
            started_s = time.perf_counter()
            lengths = model.generate(prompt.tokens, params, shape).accept_lengths
            part = sums.setdefault((prompt.set_name, prompt.category), [0, 0, 0, 0.0])
            for i, value in enumerate((1, len(lengths), sum(lengths), time.perf_counter() - started_s)):
                part[i] += value
            progress.advance(1)
        return [
            EvaluationRow(head, _numbers(shape), temperature, *key, int(part[0]), int(part[1]), int(part[2]), part[3])
            for key, part in sums.items()
        ]

    def _read(self) -> list[EvaluationRow]:
        value = read_json(self._path)
        try:
            if value["settings"] != self._settings:
                return []
            return [EvaluationRow(**{**row, "shape": tuple(row["shape"])}) for row in value["rows"]]
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{self._path} is damaged ({error}): remove it, and measure again") from error

    def _write(self) -> None:
        write_json(self._path, {"settings": self._settings, "rows": [asdict(row) for row in self.rows]})


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
        seconds=one.seconds + other.seconds,
    )


def _numbers(shape: TreeShape) -> tuple[int, int, int]:
    return shape.num_steps, shape.eagle_topk, shape.num_draft_tokens


def _spread(items: Sequence[ItemT], count: int) -> list[ItemT]:
    """count of them at even distances; all where there are no more."""
    if count >= len(items):
        return list(items)
    return [items[i * len(items) // count] for i in range(count)]
