"""Results as JSON and as a table: the figures of each run, and what the modes have in common."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from bench.outcome import Outcome, Run
from bench.workload import PLAIN, SPECULATIVE
from client.completion import Completion
from client.figures import shares_by_depth
from paceline.stats import SpeculationStats
from paceline.types import TreeShape

_ROW = "{:12} {:>4} {:>8} {:>8} {:>9} {:>10} {:>10} {:>9} {:>7}"
_HEAD = ("mode", "c", "requests", "tokens", "tokens/s", "ttft p50", "tpot p50", "accepted", "errors")


def report(runs: Sequence[Run], num_prompts: int | None = None) -> dict[str, Any]:
    """The document of ``--json``.

    identical_outputs compares the tokens of every run with those of the first; num_prompts: after how many requests
    the prompts come again, None where they do not.
    """
    difference = first_difference(runs, num_prompts)
    return {
        "runs": [run_figures(run) for run in runs],
        "summary": summary(runs),
        "speedup": speedup(runs),
        "identical_outputs": None if len(runs) < 2 else difference is None,
        "first_difference": difference,
    }


def run_figures(run: Run) -> dict[str, Any]:
    """Times in milliseconds. rounds, mean_accepted_length and accepted_by_depth count speculative rounds alone."""
    completions = run.completions
    stats = _stats(completions)
    return {
        "mode": run.mode,
        "repeat": run.repeat,
        "concurrency": run.concurrency,
        "requests": len(run.outcomes),
        "output_tokens": run.output_tokens,
        "seconds": run.seconds,
        "tokens_per_s": run.tokens_per_s,
        "steady": _steady_figures(run),
        "shape": _shape_figures(run),
        "ttft_ms": percentiles([completion.first_token_s * 1e3 for completion in completions]),
        "tpot_ms": percentiles([t for completion in completions if (t := _tpot_ms(completion)) is not None]),
        "rounds": stats.speculative_rounds,
        "mean_accepted_length": stats.mean_accepted_length,
        "accepted_by_depth": shares_by_depth(stats),
        "late_rounds": stats.late_rounds,
        "client_busy": run.client_busy,
        "errors": len(run.errors),
    }


def speedup(runs: Sequence[Run]) -> float | None:
    """Tokens a second of speculative over plain decoding: the median over the repeats. None without both, or where
    several shapes or concurrencies ran: see ``summary``."""
    parts = {(run.concurrency, run.shape) for run in runs if run.mode == SPECULATIVE}
    return _speedup(runs, *parts.pop()) if len(parts) == 1 else None


def summary(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Of each mode and shape at each concurrency: the median of its runs, and their spread."""
    groups: dict[tuple[int, str, TreeShape | None], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.concurrency, run.mode, run.shape), []).append(run)
    return [
        {
            "concurrency": concurrency,
            "mode": mode,
            "shape": _shape_figures(group[0]),
            "tokens_per_s": statistics.median(run.rate for run in group),
            "least": min(run.rate for run in group),
            "most": max(run.rate for run in group),
            "speedup": _speedup(runs, concurrency, shape) if mode == SPECULATIVE else None,
            "mean_accepted_length": _stats(
                [completion for run in group for completion in run.completions]
            ).mean_accepted_length,
            "errors": sum(len(run.errors) for run in group),
        }
        for (concurrency, mode, shape), group in groups.items()
    ]


def first_difference(runs: Sequence[Run], num_prompts: int | None = None) -> dict[str, Any] | None:
    """Where a run's tokens first differ from the first run's: prompt, position, and the token of each, or None."""
    reference = runs[0].outcomes[:num_prompts] if runs else ()
    for run in runs[1:]:
        for number, other in enumerate(run.outcomes):
            index = number % (num_prompts or len(reference))
            if index >= len(reference):
                continue  # the first run was too short for this prompt
            ours, theirs = _tokens(reference[index]), _tokens(other)
            if ours != theirs:
                position = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
                position = min(len(ours), len(theirs)) if position is None else position
                modes = [f"{r.mode}-{r.repeat}" for r in (runs[0], run)]
                tokens = [ids[position] if position < len(ids) else None for ids in (ours, theirs)]
                return {"prompt": index, "position": position, "runs": modes, "tokens": tokens}
    return None


def markdown_table(summaries: Sequence[dict[str, Any]]) -> str:
    """Output tokens a second by mode and concurrency, with the accepted length of speculative ones in brackets."""
    columns = list(dict.fromkeys(entry["concurrency"] for entry in summaries))
    rows: dict[str, dict[int, str]] = {}
    for entry in summaries:
        length = entry["mean_accepted_length"]
        cell = f"{entry['tokens_per_s']:.0f}" + ("" if length is None else f" ({length:.2f})")
        rows.setdefault(_row_name(entry), {})[entry["concurrency"]] = cell
    lines = ["| concurrency | " + " | ".join(map(str, columns)) + " |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {name} | " + " | ".join(cells.get(c, "-") for c in columns) + " |" for name, cells in rows.items()]
    return "\n".join(lines)


def table(document: dict[str, Any]) -> str:
    """The report for people."""
    lines = [_ROW.format(*_HEAD)]
    for run in document["runs"]:
        rate = run["tokens_per_s"] if run["steady"] is None else run["steady"]["tokens_per_s"]
        cells = (_row_name(run), run["concurrency"], run["requests"], run["output_tokens"], f"{rate:.1f}")
        times = (_ms(run["ttft_ms"]["p50"]), _ms(run["tpot_ms"]["p50"]))
        length = run["mean_accepted_length"]
        lines.append(_ROW.format(*cells, *times, "-" if length is None else f"{length:.3f}", run["errors"]))
    if document["speedup"] is not None:
        lines.append(f"speedup {document['speedup']:.2f}")
    if document["identical_outputs"] is not None:
        difference = document["first_difference"]
        lines.append("identical outputs: " + ("yes" if difference is None else f"no, first difference {difference}"))
    return "\n".join([*lines, "", markdown_table(document["summary"])])


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """p50 and p99; None without a value."""
    if not values:
        return {"p50": None, "p99": None}
    p50, p99 = np.percentile(values, [50, 99]).tolist()
    return {"p50": p50, "p99": p99}


def _speedup(runs: Sequence[Run], concurrency: int, shape: TreeShape | None) -> float | None:
    """The median over the repeats; None without plain runs."""
    rates = {(run.mode, run.shape, run.repeat): run.rate for run in runs if run.concurrency == concurrency}
    ratios = [
        rate / rates[PLAIN, None, repeat]
        for (mode, its_shape, repeat), rate in rates.items()
        if mode == SPECULATIVE and its_shape == shape and rates.get((PLAIN, None, repeat))
    ]
    return statistics.median(ratios) if ratios else None


def _stats(completions: Sequence[Completion]) -> SpeculationStats:
    return reduce(add, (completion.stats for completion in completions), SpeculationStats())


def _tokens(outcome: Outcome) -> tuple[int, ...]:
    return outcome.completion.token_ids if outcome.completion else ()


def _steady_figures(run: Run) -> dict[str, float] | None:
    steady = run.steady
    if steady is None:
        return None
    return {
        "seconds": steady.seconds,
        "output_tokens": steady.output_tokens,
        "tokens_per_s": steady.tokens_per_s,
    }


def _shape_figures(run: Run) -> list[int] | None:
    return None if run.shape is None else [run.shape.num_steps, run.shape.eagle_topk, run.shape.num_draft_tokens]


def _row_name(figures: dict[str, Any]) -> str:
    shape = figures["shape"]
    return figures["mode"] if shape is None else f"({','.join(map(str, shape))})"


def _tpot_ms(completion: Completion) -> float | None:
    """Milliseconds a token after the first; None for fewer than two tokens."""
    rate = completion.tokens_per_s
    return None if rate is None else 1e3 / rate


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"
