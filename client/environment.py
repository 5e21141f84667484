"""The environment of a process that runs another room's program."""

from __future__ import annotations

import os
from pathlib import Path

_SOURCE_ROOT = Path(__file__).resolve().parent.parent


def program_environment() -> dict[str, str]:
    """This process's own, in which ``python -m MODULE`` finds the rooms whether or not they are installed."""
    paths = [str(_SOURCE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
