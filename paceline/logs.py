"""One line an event on stderr, with the service's name."""

from __future__ import annotations

import logging
import sys

LEVELS = ("debug", "info", "warning", "error")


def set_up_logging(service: str, *, level: str) -> None:
    """Sends the root logger to stderr; level is one of LEVELS. Called once by a program's main."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s {service} %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
