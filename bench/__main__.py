"""``python -m bench``, which is ``paceline bench``."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from bench import simulate
from bench.config import BenchConfig
from bench.measure import Measurement, choose_prompts, measure_in_process, measure_services
from bench.report import report, table
from bench.round_picture import round_picture
from bench.round_profile import profile_table
from paceline.config import parse_flags
from paceline.errors import ConfigError, PacelineError

_TARGET_FOLDER = "target"  # of what paceline inflate writes
_INTERRUPTED = 130


def main(argv: Sequence[str]) -> int:
    """Exit codes: 0, those of the typed errors, 1 where a request failed, 130 for Ctrl-C."""
    signal.signal(signal.SIGTERM, _interrupt)
    if argv and argv[0] == "simulate":
        return simulate.main(argv[1:])
    try:
        config = parse_flags(BenchConfig, argv, prog="paceline bench")
        _check_writable(config.json, "json")
        _check_writable(config.profile_round, "profile-round")
        prompts = choose_prompts(config)
        measure = measure_in_process if config.in_process else measure_services
        return _hand_over(config, measure(config, prompts))
    except PacelineError as error:
        print(f"paceline bench: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("paceline bench: interrupted", file=sys.stderr)
        return _INTERRUPTED


def _hand_over(config: BenchConfig, measurement: Measurement) -> int:
    document = report(measurement.runs, measurement.num_prompts) | {"services": _services(measurement)}
    if config.profile_round:
        document["round_profile"] = [profile.figures() for profile in measurement.profiles]
    text = json.dumps(document, indent=2)
    if config.json == "-":
        print(text)
    else:
        print(table(document))
        if config.profile_round:
            print("\n" + profile_table(measurement.profiles))
        if config.json:
            Path(config.json).write_text(text + "\n", encoding="utf-8")
    if config.profile_round and measurement.profiles:
        title = f"Where the time of a round goes: {_model_name(Path(config.model_path))}"
        Path(config.profile_round).write_text(round_picture(measurement.profiles, title), encoding="utf-8")
    errors = [error for run in measurement.runs for error in run.errors]
    if errors:
        print(f"paceline bench: {len(errors)} request(s) failed, the first with {errors[0]}", file=sys.stderr)
    return 1 if errors else 0


def _model_name(path: Path) -> str:
    """An inflated target lies in a folder of that name, its pair's in one of the pair's."""
    return path.parent.name if path.name == _TARGET_FOLDER else path.name


def _services(measurement: Measurement) -> list[dict[str, Any]]:
    """Memory of each service, and its CPU time a token of all runs."""
    num_tokens = sum(run.output_tokens for run in measurement.runs)
    return [
        {
            "name": service.name,
            "rss_mb": service.rss_bytes / 1e6,
            "cpu_s": service.cpu_s,
            "cpu_ms_per_token": service.cpu_s * 1e3 / num_tokens if num_tokens else None,
        }
        for service in measurement.services
    ]


def _check_writable(path: str, name: str) -> None:
    """Before the measurement, not after it. Raises ConfigError."""
    if not path or path == "-":
        return
    if not Path(path).parent.is_dir():
        raise ConfigError(f"--{name} is {path}, but {Path(path).parent} is no folder; make it first")
    if Path(path).is_dir():
        raise ConfigError(f"--{name} is {path}, which is a folder; name a file")


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
