"""A completion's figures, as a line for people and as JSON."""

from __future__ import annotations

from client.completion import Completion
from paceline.stats import SpeculationStats


def describe_completion(completion: Completion) -> str:
    """One line: how many tokens, how fast, and what speculation did."""
    parts = [f"{len(completion.token_ids)} tokens", f"first after {completion.first_token_s * 1e3:.0f} ms"]
    if completion.tokens_per_s is not None:
        parts.append(f"{completion.tokens_per_s:.1f} tokens/s")
    return ", ".join([*parts, _describe_stats(completion.stats), f"finish: {completion.finish_reason.value}"])


def completion_figures(completion: Completion) -> dict[str, object]:
    """Times in milliseconds, rates a second, statistics of the rounds."""
    stats, rate = completion.stats, completion.tokens_per_s
    return {
        "ttft_ms": round(completion.first_token_s * 1e3, 3),
        "tokens_per_s": None if rate is None else round(rate, 3),
        "speculation": {
            "rounds": stats.rounds,
            "speculative_rounds": stats.speculative_rounds,
            "late_rounds": stats.late_rounds,
            "mean_accepted_length": stats.mean_accepted_length,
            "accepted_by_depth": shares_by_depth(stats),
        },
    }


def shares_by_depth(stats: SpeculationStats) -> list[float]:
    """Entry d - 1: share of the speculative rounds that accepted at least d drafts."""
    return [count / stats.speculative_rounds for count in stats.accepted_by_depth] if stats.speculative_rounds else []


def _describe_stats(stats: SpeculationStats) -> str:
    if stats.mean_accepted_length is None:
        return "no speculation"
    late = f", {stats.late_rounds} late" if stats.late_rounds else ""
    of = f"{stats.speculative_rounds} of {stats.rounds} rounds{late}"
    return f"{stats.mean_accepted_length:.2f} tokens a round with a tree ({of})"
