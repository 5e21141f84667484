"""The flags of ``paceline bench``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.workload import PLAIN, SPECULATIVE, Variant
from client.commands.fleet_flags import FleetFlags
from client.request import Sampling
from paceline.config import flag, require
from paceline.errors import ConfigError
from paceline.types import TreeShape

_REQUESTS_IN_FLIGHT = 4  # requests of a run for each in flight, where it is more than one
DEFAULT_PROMPTS = str(Path(__file__).with_name("prompts.jsonl"))


@dataclass(frozen=True, slots=True)
class BenchConfig(FleetFlags):
    """Measure throughput, latency and accepted length, on running services or on its own.

    Raises ConfigError, or InvalidInputError for sampling values and tree shapes.
    """

    prompts: str = flag(DEFAULT_PROMPTS, help="JSON lines, each with a prompt")
    num_prompts: int | None = flag(None, help="take this many, spread evenly over the file; unset: all")
    max_prompt_tokens: int | None = flag(None, help="leave out prompts that are longer in the model's template")
    max_tokens: int = flag(128, help="new tokens of a request at most")
    temperature: float = flag(0.0, help="0 is greedy")
    seed: int = flag(0, help="seed of the first prompt; each next one has one more")
    ignore_eos: bool = flag(False, help="go on past the model's end token")
    concurrency: tuple[str, ...] = flag(
        ("1",), help="requests in flight, one or more numbers; each ended one is replaced"
    )
    min_requests: int | None = flag(
        None, help="requests of a run, or 4 for each in flight where that is more; unset: all prompts at least once"
    )
    client_processes: int = flag(0, help="processes that send; 0: by concurrency and cores")
    dtype: str | None = flag(
        None, help="dtype of the models; unset: bfloat16, or the running services' own", choices=("bfloat16", "float32")
    )
    compare: tuple[str, ...] = flag((PLAIN, SPECULATIVE), help="the modes to run, in this order")
    speculative_shapes: str = flag(
        "", help="trees to compare, like 3,1,4;5,4,16: steps, topk and nodes of each; unset: the one of the flags above"
    )
    repeat: int = flag(1, help="runs of each mode, interleaved")
    in_process: bool = flag(False, help="engine and head in this process, no RPC: the reference for accepted length")
    router: str = flag("", help="measure the services behind this router instead of starting some")
    profile_round: str = flag("", help="file for a picture (SVG) of where the time of a round goes")
    json: str = flag("", help="file for the results; - is stdout")

    def __post_init__(self) -> None:
        require(self.repeat >= 1, "repeat", self.repeat, "at least 1")
        require(self.client_processes >= 0, "client_processes", self.client_processes, "0 (choose) or more")
        numbers = bool(self.concurrency) and all(part.isdecimal() and int(part) > 0 for part in self.concurrency)
        require(numbers, "concurrency", ",".join(self.concurrency), "at least 1, or several such numbers")
        for name in ("num_prompts", "max_prompt_tokens", "min_requests"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "at least 1")
        known = bool(self.compare) and set(self.compare) <= {PLAIN, SPECULATIVE}
        require(known, "compare", ",".join(self.compare), f"{PLAIN}, {SPECULATIVE}, or both, comma-separated")
        require(len(set(self.compare)) == len(self.compare), "compare", ",".join(self.compare), "free of repetitions")
        if self.in_process and self.router:
            raise ConfigError("--in-process runs without services: leave --router out")
        if self.in_process and self.profile_round:
            raise ConfigError("--in-process has no services whose rounds --profile-round could show: leave one out")
        if self.in_process:
            require(self.concurrencies == (1,), "concurrency", ",".join(self.concurrency), "1 with --in-process")
        self.variants()
        self.sampling(0)

    def sampling(self, prompt_index: int) -> Sampling:
        """The same for a prompt in every run."""
        return Sampling(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            seed=self.seed + prompt_index,
            ignore_eos=self.ignore_eos,
        )

    @property
    def concurrencies(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.concurrency)

    def num_requests(self, concurrency: int, num_prompts: int) -> int:
        """Of a run, which takes the prompts again where it needs more. One stream is steady with any number."""
        least = _REQUESTS_IN_FLIGHT * concurrency if concurrency > 1 else 1
        return max(least, num_prompts if self.min_requests is None else self.min_requests)

    def variants(self) -> tuple[Variant, ...]:
        """Those to compare, in their order. Raises ConfigError, or InvalidInputError for a shape that no tree has."""
        variants = []
        for mode in self.compare:
            shapes = self._shapes() if mode == SPECULATIVE else [None]
            variants += [Variant(mode, shape) for shape in shapes]
        return tuple(variants)

    def _shapes(self) -> list[TreeShape] | list[TreeShape | None]:
        shape = self.tree_shape()
        if not self.speculative_shapes:
            return [shape]
        if shape is not None:
            raise ConfigError("--speculative-shapes and the flags of a single shape exclude each other: leave one out")
        return [_shape(part) for part in self.speculative_shapes.split(";")]


def _shape(text: str) -> TreeShape:
    numbers = [part.strip() for part in text.split(",")]
    if len(numbers) != 3 or not all(number.isdecimal() for number in numbers):
        raise ConfigError(f"--speculative-shapes holds {text!r}; it takes steps,topk,nodes, with ; between shapes")
    return TreeShape(*map(int, numbers))
