"""The report of the router's bench: medians, ratios to the plain variant of the same run, tables."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bench.router_dress import DIRECT, PLAIN
from bench.router_runs import LoadFigures

_HEADER = (
    "| | tokens/s | of plain | messages/s | router: cores | us a message | us a token | of plain | first token ms "
    "| client: cores |\n|---|---|---|---|---|---|---|---|---|---|"
)
_FIRST_TOKEN_HEADER = "| | ms: p50 | p99 | above direct: p50 |\n|---|---|---|---|"


def variants_report(loads: Mapping[str, Sequence[LoadFigures]]) -> list[dict[str, Any]]:
    """Of each variant: every run, medians, and medians of the ratios to plain, run by run."""
    return [
        {
            "variant": name,
            "runs": [run.as_dict() for run in runs],
            "medians": _medians([run.as_dict() for run in runs]),
            "of_plain": _of_plain(runs, loads.get(PLAIN, ())),
        }
        for name, runs in loads.items()
    ]


def first_token_report(first_tokens: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Of each variant's times, in ms: quantiles, and what the median is above that of clients at the target."""
    direct = first_tokens.get(DIRECT)
    return [
        {
            "variant": name,
            "requests": len(values),
            "p50_ms": float(np.percentile(values, 50)),
            "p99_ms": float(np.percentile(values, 99)),
            "above_direct_ms": None if direct is None else float(np.median(values) - np.median(direct)),
        }
        for name, values in first_tokens.items()
    ]


def table(variants: Sequence[Mapping[str, Any]]) -> str:
    """Markdown."""
    return "\n".join([_HEADER, *map(_row, variants)])


def first_token_table(variants: Sequence[Mapping[str, Any]]) -> str:
    """Markdown."""
    return "\n".join([_FIRST_TOKEN_HEADER, *map(_first_token_row, variants)])


def _row(report: Mapping[str, Any]) -> str:
    medians, ratios = report["medians"], report["of_plain"]
    cells = [
        report["variant"],
        f"{medians['tokens_per_s']:.0f}",
        _ratio(ratios, "tokens_per_s"),
        f"{medians['messages_per_s']:.0f}",
        f"{medians['cpu_cores']:.2f}",
        f"{medians['cpu_us_per_message']:.1f}",
        f"{medians['cpu_us_per_token']:.1f}",
        _ratio(ratios, "cpu_us_per_token"),
        f"{medians['first_token_ms']:.2f}",
        f"{medians['client_cores']:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def _first_token_row(report: Mapping[str, Any]) -> str:
    above = "" if report["above_direct_ms"] is None else f"{report['above_direct_ms']:.2f}"
    return f"| {report['variant']} | {report['p50_ms']:.2f} | {report['p99_ms']:.2f} | {above} |"


def _ratio(ratios: Mapping[str, float], name: str) -> str:
    return f"{ratios[name]:.3f}" if name in ratios else ""


def _of_plain(runs: Sequence[LoadFigures], plain: Sequence[LoadFigures]) -> dict[str, float]:
    """Without the figures that are 0 in a run of plain, as CPU time below the clock's tick is."""
    pairs = [(run.as_dict(), beside.as_dict()) for run, beside in zip(runs, plain, strict=False)]
    ratios = [{key: value / beside[key] for key, value in run.items() if beside[key]} for run, beside in pairs]
    common = set.intersection(*map(set, ratios)) if ratios else set()
    return {key: statistics.median(ratio[key] for ratio in ratios) for key in sorted(common)}


def _medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}
