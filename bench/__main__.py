"""``python -m bench``, which is ``paceline bench``."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from bench import router_load, simulate, sweep
from bench.config import BenchConfig
from bench.measure import Measurement, choose_prompts, measure_in_process, measure_services
from bench.report import report, table
from bench.round_picture import round_picture
from bench.round_profile import profile_table
from bench.writing import check_writable, model_name
from client.terminal import say_error
from paceline.config import parse_flags
from paceline.errors import PacelineError

_INTERRUPTED = 130
_COMMANDS = {"router": router_load.main, "simulate": simulate.main, "sweep": sweep.main}


def main(argv: Sequence[str]) -> int:
    """Exit codes: 0, those of the typed errors, 1 where a request failed, 130 for Ctrl-C."""
    signal.signal(signal.SIGTERM, _interrupt)
    name, rest = (argv[0], argv[1:]) if argv and argv[0] in _COMMANDS else ("", argv)
    command = f"paceline bench {name}".rstrip()
    try:
        return _COMMANDS[name](rest) if name else _bench(rest)
    except PacelineError as error:
        say_error(command, error)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"{command}: interrupted", file=sys.stderr)
        return _INTERRUPTED


def _bench(argv: Sequence[str]) -> int:
    config = parse_flags(BenchConfig, argv, prog="paceline bench")
    check_writable(config.json, "json")
    check_writable(config.profile_round, "profile-round")
    prompts = choose_prompts(config, is_mixed=config.min_requests is not None)
    measure = measure_in_process if config.in_process else measure_services
    return _hand_over(config, measure(config, prompts))


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
        title = f"Where the time of a round goes: {model_name(Path(config.model_path))}"
        Path(config.profile_round).write_text(round_picture(measurement.profiles, title), encoding="utf-8")
    errors = [error for run in measurement.runs for error in run.errors]
    if errors:
        print(f"paceline bench: {len(errors)} request(s) failed, the first with {errors[0]}", file=sys.stderr)
    return 1 if errors else 0


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


def _interrupt(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it may come twice, to the process and to its group
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
