"""Flags of every measurement: the services, and what is asked of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from client.commands.fleet_flags import FleetFlags
from client.request import Sampling
from paceline.config import flag, require

DEFAULT_PROMPTS = str(Path(__file__).with_name("prompts.jsonl"))


@dataclass(frozen=True, slots=True)
class WorkloadFlags(FleetFlags):
    """Prompts, how they are answered, and by which services. Raises ConfigError, or InvalidInputError for sampling."""

    prompts: str = flag(DEFAULT_PROMPTS, help="JSON lines, each with a prompt")
    num_prompts: int | None = flag(None, help="take this many, spread evenly over the file; unset: all")
    max_prompt_tokens: int | None = flag(None, help="leave out prompts that are longer in the model's template")
    max_tokens: int = flag(128, help="new tokens of a request at most")
    temperature: float = flag(0.0, help="0 is greedy")
    seed: int = flag(0, help="seed of the first prompt; each next one has one more")
    ignore_eos: bool = flag(False, help="go on past the model's end token")
    client_processes: int = flag(0, help="processes that send; 0: by concurrency and cores")
    dtype: str | None = flag(
        None, help="dtype of the models; unset: bfloat16, or the running services' own", choices=("bfloat16", "float32")
    )
    repeat: int = flag(1, help="runs of each mode, interleaved")
    router: str = flag("", help="measure the services behind this router instead of starting some")
    json: str = flag("", help="file for the results; - is stdout")

    def __post_init__(self) -> None:
        require(self.repeat >= 1, "repeat", self.repeat, "at least 1")
        require(self.client_processes >= 0, "client_processes", self.client_processes, "0 (choose) or more")
        for name in ("num_prompts", "max_prompt_tokens"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "at least 1")
        self.sampling(0)
        if self.router:
            self.check_starts_none("--router measures services that run")

    def sampling(self, prompt_index: int) -> Sampling:
        """The same for a prompt in every run."""
        return Sampling(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            seed=self.seed + prompt_index,
            ignore_eos=self.ignore_eos,
        )
