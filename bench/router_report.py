"""The report of the router's bench: medians, ratios to the plain variant of the same run, a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bench.router_dress import PLAIN
from bench.router_runs import LoadFigures

_HEADER = (
    "| | tokens/s | of plain | messages/s | router: cores | us a message | us a token | first token ms: p50, p99 "
    "| client: cores |\n|---|---|---|---|---|---|---|---|---|"
)


def variants_report(
    loads: Mapping[str, Sequence[LoadFigures]], first_tokens: Mapping[str, Sequence[float]]
) -> list[dict[str, Any]]:
    """Of each variant: every run, medians, and medians of the ratios to plain, run by run."""
    return [
        {
            "variant": name,
            "runs": [run.as_dict() for run in runs],
            "medians": _medians([run.as_dict() for run in runs]),
            "of_plain": _of_plain(runs, loads.get(PLAIN, ())),
            "first_token_ms": _quantiles(first_tokens.get(name, ())),
        }
        for name, runs in loads.items()
    ]


def table(variants: Sequence[Mapping[str, Any]]) -> str:
    """Markdown."""
    return "\n".join([_HEADER, *map(_row, variants)])


def _row(report: Mapping[str, Any]) -> str:
    medians, ratio, first = report["medians"], report["of_plain"].get("tokens_per_s"), report["first_token_ms"]
    cells = [
        report["variant"],
        f"{medians['tokens_per_s']:.0f}",
        "" if ratio is None else f"{ratio:.3f}",
        f"{medians['messages_per_s']:.0f}",
        f"{medians['cpu_cores']:.2f}",
        f"{medians['cpu_us_per_message']:.1f}",
        f"{medians['cpu_us_per_token']:.1f}",
        f"{first['p50']:.2f}, {first['p99']:.2f}" if first else "",
        f"{medians['client_cores']:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def _of_plain(runs: Sequence[LoadFigures], plain: Sequence[LoadFigures]) -> dict[str, float]:
    pairs = zip(runs, plain, strict=False)
    ratios = [{key: value / beside.as_dict()[key] for key, value in run.as_dict().items()} for run, beside in pairs]
    return _medians(ratios) if ratios else {}


def _medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    return {"p50": float(np.percentile(values, 50)), "p99": float(np.percentile(values, 99)), "requests": len(values)}
