"""The flags of ``paceline bench``."""

from __future__ import annotations

from dataclasses import dataclass

from bench.policies import parse_shape
from bench.workload import PLAIN, SPECULATIVE, Variant
from bench.workload_flags import WorkloadFlags
from paceline.config import flag, require
from paceline.errors import ConfigError
from paceline.types import TreeShape

_REQUESTS_IN_FLIGHT = 4  # requests of a run for each in flight, where it is more than one


@dataclass(frozen=True, slots=True)
class BenchConfig(WorkloadFlags):
    """Measure throughput, latency and accepted length, on running services or on its own.

    Raises ConfigError, or InvalidInputError for sampling values and tree shapes.
    """

    concurrency: tuple[str, ...] = flag(
        ("1",), help="requests in flight, one or more numbers; each ended one is replaced"
    )
    min_requests: int | None = flag(
        None, help="requests of a run, or 4 for each in flight where that is more; unset: all prompts at least once"
    )
    compare: tuple[str, ...] = flag((PLAIN, SPECULATIVE), help="the modes to run, in this order")
    speculative_shapes: str = flag(
        "", help="trees to compare, like 3,1,4;5,4,16: steps, topk and nodes of each; unset: the one of the flags above"
    )
    in_process: bool = flag(False, help="engine and head in this process, no RPC: the reference for accepted length")
    profile_round: str = flag("", help="file for a picture (SVG) of where the time of a round goes")

    def __post_init__(self) -> None:
        WorkloadFlags.__post_init__(self)
        numbers = bool(self.concurrency) and all(part.isdecimal() and int(part) > 0 for part in self.concurrency)
        require(numbers, "concurrency", ",".join(self.concurrency), "at least 1, or several such numbers")
        least = self.min_requests
        require(least is None or least >= 1, "min_requests", least, "at least 1")
        known = bool(self.compare) and set(self.compare) <= {PLAIN, SPECULATIVE}
        require(known, "compare", ",".join(self.compare), f"{PLAIN}, {SPECULATIVE}, or both, comma-separated")
        require(len(set(self.compare)) == len(self.compare), "compare", ",".join(self.compare), "free of repetitions")
        if self.in_process and self.router:
            raise ConfigError("--in-process runs without services: leave --router out")
        if SPECULATIVE in self.compare and self.drafts == 0 and not self.in_process and not self.router:
            raise ConfigError("--drafts is 0, and --compare has speculative: start a draft, or use --compare plain")
        if self.in_process and self.profile_round:
            raise ConfigError("--in-process has no services whose rounds --profile-round could show: leave one out")
        if self.in_process:
            require(self.concurrencies == (1,), "concurrency", ",".join(self.concurrency), "1 with --in-process")
        self.variants()

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
        return [parse_shape(part, "speculative-shapes") for part in self.speculative_shapes.split(";")]
