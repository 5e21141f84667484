"""What one measured request came to, and how a mode's requests are sent."""

from __future__ import annotations

from dataclasses import dataclass

from client.completion import Completion


@dataclass(frozen=True, slots=True)
class Outcome:
    """A completion, or why there is none."""

    completion: Completion | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """All requests of one mode, in the order of the prompts, and the seconds from first send to last end."""

    mode: str
    repeat: int  # counts the runs of the mode, from 0 on
    concurrency: int
    seconds: float
    outcomes: tuple[Outcome, ...]

    @property
    def completions(self) -> list[Completion]:
        return [outcome.completion for outcome in self.outcomes if outcome.completion is not None]

    @property
    def errors(self) -> list[str]:
        return [outcome.error for outcome in self.outcomes if outcome.completion is None]

    @property
    def output_tokens(self) -> int:
        return sum(len(completion.token_ids) for completion in self.completions)

    @property
    def tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds
