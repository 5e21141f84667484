"""Results as JSON and as a table: the figures of each run, and what the modes have in common."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from bench.config import PLAIN, SPECULATIVE
from bench.outcome import Run
from client.completion import Completion
from client.figures import shares_by_depth
from paceline.stats import SpeculationStats

_ROW = "{:12} {:>4} {:>8} {:>8} {:>9} {:>10} {:>10} {:>9} {:>7}"
_HEAD = ("mode", "c", "requests", "tokens", "tokens/s", "ttft p50", "tpot p50", "accepted", "errors")


def report(runs: Sequence[Run]) -> dict[str, Any]:
    """The document of ``--json``. identical_outputs compares the tokens of every run with those of the first."""
    difference = first_difference(runs)
    return {
        "runs": [run_figures(run) for run in runs],
        "speedup": speedup(runs),
        "identical_outputs": None if len(runs) < 2 else difference is None,
        "first_difference": difference,
    }


def run_figures(run: Run) -> dict[str, Any]:
    """Times in milliseconds. rounds, mean_accepted_length and accepted_by_depth count speculative rounds alone."""
    completions = run.completions
    stats = reduce(add, (completion.stats for completion in completions), SpeculationStats())
    return {
        "mode": run.mode,
        "repeat": run.repeat,
        "concurrency": run.concurrency,
        "requests": len(run.outcomes),
        "output_tokens": run.output_tokens,
        "seconds": run.seconds,
        "tokens_per_s": run.tokens_per_s,
        "ttft_ms": _percentiles([completion.first_token_s * 1e3 for completion in completions]),
        "tpot_ms": _percentiles([t for completion in completions if (t := _tpot_ms(completion)) is not None]),
        "rounds": stats.speculative_rounds,
        "mean_accepted_length": stats.mean_accepted_length,
        "accepted_by_depth": shares_by_depth(stats),
        "late_rounds": stats.late_rounds,
        "errors": len(run.errors),
    }


def speedup(runs: Sequence[Run]) -> float | None:
    """Tokens a second of speculative over plain decoding: the median over the repeats. None without both."""
    rates = {(run.mode, run.repeat): run.tokens_per_s for run in runs}
    ratios = [
        rate / rates[PLAIN, repeat]
        for (mode, repeat), rate in rates.items()
        if mode == SPECULATIVE and rates.get((PLAIN, repeat))
    ]
    return statistics.median(ratios) if ratios else None


def first_difference(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Where a run's tokens first differ from the first run's: prompt, position, and the token of each, or None."""
    for run in runs[1:]:
        for index, (one, other) in enumerate(zip(runs[0].outcomes, run.outcomes, strict=True)):
            ours = one.completion.token_ids if one.completion else ()
            theirs = other.completion.token_ids if other.completion else ()
            if ours != theirs:
                position = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
                position = min(len(ours), len(theirs)) if position is None else position
                modes = [f"{r.mode}-{r.repeat}" for r in (runs[0], run)]
                tokens = [ids[position] if position < len(ids) else None for ids in (ours, theirs)]
                return {"prompt": index, "position": position, "runs": modes, "tokens": tokens}
    return None


def table(document: dict[str, Any]) -> str:
    """The report for people."""
    lines = [_ROW.format(*_HEAD)]
    for run in document["runs"]:
        cells = (run["mode"], run["concurrency"], run["requests"], run["output_tokens"], f"{run['tokens_per_s']:.1f}")
        times = (_ms(run["ttft_ms"]["p50"]), _ms(run["tpot_ms"]["p50"]))
        length = run["mean_accepted_length"]
        lines.append(_ROW.format(*cells, *times, "-" if length is None else f"{length:.3f}", run["errors"]))
    if document["speedup"] is not None:
        lines.append(f"speedup {document['speedup']:.2f}")
    if document["identical_outputs"] is not None:
        difference = document["first_difference"]
        lines.append("identical outputs: " + ("yes" if difference is None else f"no, first difference {difference}"))
    return "\n".join(lines)


def _tpot_ms(completion: Completion) -> float | None:
    """Milliseconds a token after the first; None for fewer than two tokens."""
    rate = completion.tokens_per_s
    return None if rate is None else 1e3 / rate


def _percentiles(values: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return {"p50": None, "p99": None}
    p50, p99 = np.percentile(values, [50, 99]).tolist()
    return {"p50": p50, "p99": p99}


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"
