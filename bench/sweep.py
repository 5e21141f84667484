"""``paceline bench sweep``: policies side by side over loads, measured and simulated."""

from __future__ import annotations

import json
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
    """Exit code 0. Raises a PacelineError."""
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
    return 0


def _write(config: SweepConfig, document: dict[str, Any]) -> None:
    if config.json and config.json != "-":
        Path(config.json).write_text(json.dumps(document) + "\n", encoding="utf-8")


def _measure(config: SweepConfig) -> dict[str, Any]:
    prompts = choose_prompts(config, is_mixed=True)
    sweep = measure_sweep(config, prompts)
    errors = [error for run in sweep.runs for error in run.timed.errors]
    if errors:
        raise PacelineError(f"{len(errors)} request(s) failed, the first with {errors[0]}")
    return sweep_document(config, sweep, len(prompts))
