"""``paceline bench sweep``: policies side by side over loads, measured and simulated."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.measure import choose_prompts
from bench.simulated_sweep import predict
from bench.sweep_config import SweepConfig
from bench.sweep_document import read_sweeps, sweep_document
from bench.sweep_picture import sweep_picture
from bench.sweep_report import report, table
from bench.sweep_runs import measure_sweep
from bench.writing import check_writable, model_name
from paceline.config import parse_flags
from paceline.errors import PacelineError


def main(argv: Sequence[str]) -> int:
    """Exit code 0, or 1 where requests failed. Raises a PacelineError."""
    config = parse_flags(SweepConfig, argv, prog="paceline bench sweep")
    check_writable(config.json, "json")
    check_writable(config.picture, "picture")
    sweeps = [sweep for path in config.measured for sweep in read_sweeps(path, "measured")] or [_measure(config)]
    document = report(sweeps, [])
    _write(config, document)  # what was measured is kept, whatever comes next
    if config.simulate:
        document = report(sweeps, [prediction for sweep in sweeps for prediction in predict(sweep)])
        _write(config, document)
    print(json.dumps(document) if config.json == "-" else table(document))
    if config.picture:
        title = f"Throughput and time per token by load: {model_name(Path(config.model_path))}"
        Path(config.picture).write_text(sweep_picture(document, title), encoding="utf-8")
    if document["failed"] and not config.measured:
        print(f"paceline bench sweep: {_failures(document)}; their points do not count", file=sys.stderr)
        return 1
    return 0


def _write(config: SweepConfig, document: dict[str, Any]) -> None:
    if config.json and config.json != "-":
        Path(config.json).write_text(json.dumps(document) + "\n", encoding="utf-8")


def _measure(config: SweepConfig) -> dict[str, Any]:
    """Raises PacelineError where no point is left."""
    prompts = choose_prompts(config, is_mixed=True)
    document = sweep_document(config, measure_sweep(config, prompts), len(prompts))
    if not document["points"]:
        raise PacelineError(_failures(document))
    return document


def _failures(document: dict[str, Any]) -> str:
    failed = document["failed"]
    return f"{sum(entry['requests'] for entry in failed)} request(s) failed, the first with {failed[0]['error']}"
