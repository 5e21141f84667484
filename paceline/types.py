"""Value types of a request: validated where they enter, trusted inside."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral

from paceline.errors import InvalidInputError
from paceline.tree import MAX_NODES

MAX_SCRATCH_NODES = 64  # beam nodes that one draft tree keeps: their ancestors fit one 64-bit mask
MAX_STEPS = 64
MAX_STOP_TOKEN_IDS = 64


class FinishReason(enum.Enum):
    """Why a request ended."""

    STOP = "stop"  # a stop token or the model's end token
    LENGTH = "length"  # max_tokens or the context's end
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn and when a request ends. temperature 0 is greedy. top_k 0 means all.

    Raises InvalidInputError, naming the field, its value and the range.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise _refusal("max_tokens", self.max_tokens, "at least 1")
        if not 0 <= self.temperature < math.inf:
            raise _refusal("temperature", self.temperature, "a finite number, 0 (greedy) or more")
        if self.top_k < 0:
            raise _refusal("top_k", self.top_k, "0 (all tokens) or more")
        if not 0 < self.top_p <= 1:
            raise _refusal("top_p", self.top_p, "above 0 and at most 1")
        if not 0 <= self.min_p <= 1:
            raise _refusal("min_p", self.min_p, "0 to 1")
        if not 0 <= self.seed < 2**64:
            raise _refusal("seed", self.seed, "0 to 2**64 - 1")
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise _refusal("stop_token_ids", len(self.stop_token_ids), f"at most {MAX_STOP_TOKEN_IDS} ids")
        if self.stop_token_ids and min(self.stop_token_ids) < 0:
            raise _refusal("stop_token_ids", self.stop_token_ids, "0 or more each")


@dataclass(frozen=True, slots=True)
class TreeShape:
    """How far to speculate: SGLang's three numbers. num_draft_tokens counts the root.

    eagle_topk 1 is a chain of num_steps + 1 nodes. min_path_permille: drafts whose path the head gives a smaller
    probability, in thousandths, are left out, down to the root alone. Raises InvalidInputError.
    """

    num_steps: int
    eagle_topk: int
    num_draft_tokens: int
    min_path_permille: int = 0

    def __post_init__(self) -> None:
        for name in ("num_steps", "eagle_topk", "num_draft_tokens", "min_path_permille"):
            value = getattr(self, name)
            _require(isinstance(value, Integral), name, repr(value), "a whole number")
        permille = self.min_path_permille
        _require(0 <= permille < 1000, "min_path_permille", permille, "0 (none is left out) to 999")
        _require(1 <= self.num_steps <= MAX_STEPS, "num_steps", self.num_steps, f"1 to {MAX_STEPS}")
        _require(1 <= self.eagle_topk <= MAX_NODES, "eagle_topk", self.eagle_topk, f"1 to {MAX_NODES}")
        nodes_ok = 2 <= self.num_draft_tokens <= MAX_NODES
        _require(nodes_ok, "num_draft_tokens", self.num_draft_tokens, f"2 to {MAX_NODES}")
        scratch = (self.num_steps - 1) * self.eagle_topk
        limit = f"at most {MAX_SCRATCH_NODES}: take fewer steps or a smaller eagle_topk"
        _require(scratch <= MAX_SCRATCH_NODES, "(num_steps - 1) * eagle_topk", scratch, limit)
        most = self.max_nodes(self.num_steps, self.eagle_topk)
        limit = f"at most {most}, all that {self.num_steps} steps of {self.eagle_topk} give with the root"
        _require(self.num_draft_tokens <= most, "num_draft_tokens", self.num_draft_tokens, limit)

    def within(self, num_levels: int) -> TreeShape | None:
        """With no more levels than these; itself where it has none more; None for no level."""
        if self.num_steps <= num_levels:
            return self
        if num_levels < 1:
            return None
        num_nodes = min(self.num_draft_tokens, self.max_nodes(num_levels, self.eagle_topk))
        return TreeShape(num_levels, self.eagle_topk, num_nodes, self.min_path_permille)

    @staticmethod
    def max_nodes(num_steps: int, eagle_topk: int) -> int:
        """Candidates of a full beam, and the root."""
        return 1 + eagle_topk + (num_steps - 1) * eagle_topk**2


@lru_cache(maxsize=1024)
def tree_shape(num_steps: int, eagle_topk: int, num_draft_tokens: int, min_path_permille: int = 0) -> TreeShape:
    """A TreeShape that is often made: equal ones are one object, checked once."""
    return TreeShape(num_steps, eagle_topk, num_draft_tokens, min_path_permille)


@dataclass(frozen=True, slots=True)
class Rung:
    """One rung of a decision: its shape holds while at most max_running_requests run on the target (0: no bound)."""

    max_running_requests: int
    shape: TreeShape | None


def shape_at(ladder: Iterable[Rung], running_requests: int) -> TreeShape | None:
    """The shape of the first rung that holds at this batch size; None means plain decoding."""
    for rung in ladder:
        if rung.max_running_requests == 0 or running_requests <= rung.max_running_requests:
            return rung.shape
    return None


@dataclass(frozen=True, slots=True)
class SpeculationDecision:
    """The router's word for one request: on which draft, how far, and why."""

    draft: str = ""  # host:port of the draft replica; kept while off, so that flushes go on; "" = none
    ladder: tuple[Rung, ...] = ()  # the first rung that holds counts; none: plain decoding
    reason: str = ""

    def shape_for(self, running_requests: int) -> TreeShape | None:
        """The shape at this batch size; None means plain decoding."""
        return shape_at(self.ladder, running_requests) if self.draft else None


def _require(ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        raise _refusal(name, value, allowed)


def _refusal(name: str, value: object, allowed: str) -> InvalidInputError:
    return InvalidInputError(f"{name} is {value}; it must be {allowed}")
