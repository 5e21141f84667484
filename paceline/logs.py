"""One line an event on stderr, with the service's name: as text, or as a JSON object."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def set_up_logging(service: str, *, level: str, format: str = "text") -> None:
    """Sends the root logger to stderr; level is one of LEVELS, format one of FORMATS. Called once by a program's main.

    What a call passes as ``extra`` follows the message as name=value, or is keys of the object.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(service) if format == "json" else TextFormatter(service))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


class TextFormatter(logging.Formatter):
    """``2026-01-01 00:00:00,000 INFO router router.dispatcher: message request_id=...``"""

    def __init__(self, service: str) -> None:
        super().__init__(f"%(asctime)s %(levelname)s {service} %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        words = [super().formatMessage(record), *(f"{name}={value}" for name, value in _extras(record).items())]
        return " ".join(words)


class JsonFormatter(logging.Formatter):
    """One line: time (RFC 3339, UTC), level, service, logger, message, the extras, and error where there is one."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
            **_extras(record),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}
