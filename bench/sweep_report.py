"""What sweeps come to: medians, the best fixed policy at each load, and how well they were predicted."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.policies import ADAPTIVE

_DISTURBED, _FAILED = "~", "!"

_Key = tuple[str, str]  # load, policy


@dataclass(frozen=True, slots=True)
class Prediction:
    """Tokens a second of one policy at one load, as simulated."""

    load: str
    policy: str
    tokens_per_s: float


def report(sweeps: Sequence[dict[str, Any]], predictions: Sequence[Prediction]) -> dict[str, Any]:
    """The document of ``--json``: sweeps as they were measured, and what they come to together.

    Runs that other processes disturbed count only where there is no other.
    """
    groups = _by_key(
        point | {"turn": (number, point["repeat"])} for number, sweep in enumerate(sweeps) for point in sweep["points"]
    )
    summary = _summary(groups, predictions)
    return {
        "sweeps": list(sweeps),
        "failed": [failure for sweep in sweeps for failure in sweep.get("failed", [])],
        "summary": summary,
        "best": _best(summary, groups),
        "prediction": _errors(summary),
    }


def table(document: dict[str, Any]) -> str:
    """For people, in Markdown."""
    summary, failed = document["summary"], document["failed"]
    policies = list(dict.fromkeys(entry["policy"] for entry in [*summary, *failed]))
    loads = list(dict.fromkeys(entry["load"] for entry in [*summary, *failed]))
    cells = {(entry["load"], entry["policy"]): entry for entry in summary}
    ratio = {entry["load"]: entry["adaptive_ratio"] for entry in document["best"]}
    fastest = {entry["load"]: entry["best_fixed"] for entry in document["best"]}

    has_failed = {(entry["load"], entry["policy"]) for entry in failed}

    def cell(key: _Key, name: str, digits: int) -> str:
        return _cell(cells.get(key, {}), name, digits) + (_FAILED if key in has_failed else "")

    def rows(name: str, digits: int) -> list[list[str]]:
        return [[load, *(cell((load, policy), name, digits) for policy in policies)] for load in loads]

    rates = [[*row, fastest.get(row[0]) or "-", _number(ratio.get(row[0]), 3)] for row in rows("tokens_per_s", 1)]
    parts = ["tokens/s, medians", _markdown(["load", *policies, "best fixed", "adaptive / best"], rates)]
    parts += ["time a token, p99 in ms", _markdown(["load", *policies], rows("tpot_p99_ms", 1))]
    parts += ["accepted length", _markdown(["load", *policies], rows("mean_accepted_length", 2))]
    if document["prediction"] is not None:
        worst = document["prediction"]
        parts += ["predicted / measured tokens/s", _markdown(["load", *policies], rows("predicted_ratio", 2))]
        parts += [f"largest error {worst['largest_error']:.0%}: {worst['policy']} at {worst['load']}"]
    if any(entry["is_disturbed"] for entry in summary):
        parts += [f"{_DISTURBED}: other processes used too much of the machine in each run"]
    if failed:
        parts += ["\n".join([f"{_FAILED}: runs left out, for requests failed in them:", *map(_failure, failed)])]
    return "\n\n".join(parts)


def _by_key(points: Iterable[dict[str, Any]]) -> dict[_Key, list[dict[str, Any]]]:
    groups: dict[_Key, list[dict[str, Any]]] = {}
    for point in points:
        groups.setdefault((point["load"], point["policy"]), []).append(point)
    return {key: [point for point in points if not point["is_disturbed"]] or points for key, points in groups.items()}


def _summary(groups: dict[_Key, list[dict[str, Any]]], predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
    predicted: dict[_Key, list[float]] = {}
    for prediction in predictions:
        predicted.setdefault((prediction.load, prediction.policy), []).append(prediction.tokens_per_s)
    summary = []
    for (load, policy), points in groups.items():
        rates = [point["tokens_per_s"] for point in points]
        rate, forecast = statistics.median(rates), _median(predicted.get((load, policy), []))
        summary.append(
            {
                "load": load,
                "is_open": points[0]["is_open"],
                "policy": policy,
                "runs": len(points),
                "is_disturbed": points[0]["is_disturbed"],
                "tokens_per_s": rate,
                "least": min(rates),
                "most": max(rates),
                "ttft_p50_ms": _median(point["ttft_ms"]["p50"] for point in points),
                "tpot_p50_ms": _median(point["tpot_ms"]["p50"] for point in points),
                "tpot_p99_ms": _median(point["tpot_ms"]["p99"] for point in points),
                "mean_accepted_length": _median(point["mean_accepted_length"] for point in points),
                "predicted_tokens_per_s": forecast,
                "predicted_ratio": None if forecast is None or not rate else forecast / rate,
            }
        )
    return summary


def _best(summary: Sequence[dict[str, Any]], groups: dict[_Key, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """At each load the fixed policy of most tokens a second, and adaptive over it: the median over turns of both."""
    best = []
    for load in dict.fromkeys(entry["load"] for entry in summary):
        rates = {entry["policy"]: entry["tokens_per_s"] for entry in summary if entry["load"] == load}
        rates.pop(ADAPTIVE, None)
        if not rates:
            continue
        name = max(rates, key=lambda policy: rates[policy])
        ours, theirs = (
            {point["turn"]: point["tokens_per_s"] for point in groups.get((load, policy), [])}
            for policy in (ADAPTIVE, name)
        )
        ratio = _median(ours[turn] / theirs[turn] for turn in ours.keys() & theirs.keys() if theirs[turn])
        best.append({"load": load, "best_fixed": name, "tokens_per_s": rates[name], "adaptive_ratio": ratio})
    return best


def _errors(summary: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Over the points that were not disturbed; None where nothing was predicted of these."""
    steady = [entry for entry in summary if not entry["is_disturbed"]]
    predicted = [entry for entry in steady if entry["predicted_ratio"] is not None]
    if not predicted:
        return None
    worst = max(predicted, key=lambda entry: abs(entry["predicted_ratio"] - 1.0))
    return {
        "largest_error": abs(worst["predicted_ratio"] - 1.0),
        "mean_error": statistics.fmean(abs(entry["predicted_ratio"] - 1.0) for entry in predicted),
        "load": worst["load"],
        "policy": worst["policy"],
    }


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _failure(entry: dict[str, Any]) -> str:
    return f"{entry['policy']} at {entry['load']}, run {entry['repeat'] + 1}: {entry['error']}"


def _cell(entry: dict[str, Any], name: str, digits: int) -> str:
    mark = _DISTURBED if entry.get("is_disturbed") else ""
    return _number(entry.get(name), digits) + mark


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
