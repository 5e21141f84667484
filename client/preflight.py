"""What can be wrong with a fleet's flags, found in a second, before any service loads its model."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

from client.environment import program_environment
from client.process import ServiceStartError
from paceline.ports import Listener

_SIDE_PORTS = ("metrics-port", "health-port", "page-port", "round-port")


def listeners_in(flags: Sequence[str], *, host: str) -> list[Listener]:
    """The ports that a service's flags name beside its own; what is no port is left for the service to refuse."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--host", default=host)
    parser.add_argument("--page-host", default="127.0.0.1")
    for name in _SIDE_PORTS:
        parser.add_argument(f"--{name}", dest=name, default="0")
    try:
        values = vars(parser.parse_known_args(list(flags))[0])
    except argparse.ArgumentError:  # a flag without its value
        return []
    hosts = {"page-port": values["page_host"]}
    return [
        Listener(f"--{name}", hosts.get(name, values["host"]), int(values[name]))
        for name in _SIDE_PORTS
        if values[name].isascii() and values[name].isdecimal() and 0 < int(values[name]) < 65536
    ]


def check_flags(name: str, module: str, flags: Sequence[str], *, timeout_s: float) -> None:
    """Lets ``python -m MODULE FLAG... --check`` look at its flags. Raises ServiceStartError with its words and code."""
    command = [sys.executable, "-m", module, *flags, "--check"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, env=program_environment(), check=False
        )
    except subprocess.TimeoutExpired:
        raise ServiceStartError(f"the {name} did not look at its flags within {timeout_s:g} s") from None
    if done.returncode != 0:
        said = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        raise ServiceStartError(f"the {name} would not start: {said}", exit_code=done.returncode)
