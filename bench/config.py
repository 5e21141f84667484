"""The flags of ``paceline bench``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from client.commands.fleet_flags import FleetFlags
from client.request import Sampling
from paceline.config import flag, require
from paceline.errors import ConfigError

PLAIN, SPECULATIVE = "plain", "speculative"
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
    concurrency: int = flag(1, help="requests in flight; an ended one is replaced at once")
    dtype: str | None = flag(
        None, help="dtype of the models; unset: bfloat16, or the running services' own", choices=("bfloat16", "float32")
    )
    compare: tuple[str, ...] = flag((PLAIN, SPECULATIVE), help="the modes to run, in this order")
    repeat: int = flag(1, help="runs of each mode, interleaved")
    in_process: bool = flag(False, help="engine and head in this process, no RPC: the reference for accepted length")
    router: str = flag("", help="measure the services behind this router instead of starting some")
    json: str = flag("", help="file for the results; - is stdout")

    def __post_init__(self) -> None:
        for name in ("concurrency", "repeat"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("num_prompts", "max_prompt_tokens"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "at least 1")
        known = bool(self.compare) and set(self.compare) <= {PLAIN, SPECULATIVE}
        require(known, "compare", ",".join(self.compare), f"{PLAIN}, {SPECULATIVE}, or both, comma-separated")
        require(len(set(self.compare)) == len(self.compare), "compare", ",".join(self.compare), "free of repetitions")
        if self.in_process and self.router:
            raise ConfigError("--in-process runs without services: leave --router out")
        if self.in_process:
            require(self.concurrency == 1, "concurrency", self.concurrency, "1 with --in-process")
        self.tree_shape()
        self.sampling(0)

    def sampling(self, prompt_index: int) -> Sampling:
        """The same for a prompt in every run."""
        return Sampling(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            seed=self.seed + prompt_index,
            ignore_eos=self.ignore_eos,
        )
