"""``paceline bench``: becomes ``python -m bench``, which may use what the client may not import."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from client.commands.command import Command

_SOURCE_ROOT = Path(__file__).resolve().parent.parent.parent


def main(argv: Sequence[str]) -> NoReturn:
    paths = [str(_SOURCE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    os.execve(sys.executable, [sys.executable, "-m", "bench", *argv], environment)


COMMAND = Command("bench", "measure throughput, latency and accepted length", main)
