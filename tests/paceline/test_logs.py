"""Log lines as text and as JSON, with what a call passes beside the message."""

from __future__ import annotations

import json
import logging

import pytest

from paceline.logs import JsonFormatter, TextFormatter


def record(message: str = "request %s ended", *args: object, **extra: object) -> logging.LogRecord:
    logger = logging.getLogger("router.requests")
    return logger.makeRecord(logger.name, logging.INFO, "file", 1, message, args or ("r1",), None, extra=extra)


def test_a_json_line_is_one_object_with_the_extras() -> None:
    line = JsonFormatter("router").format(record(request_id="r1", seconds=0.25, tenant='quo"ted\n'))
    assert "\n" not in line
    document = json.loads(line)
    time = document.pop("time")
    assert len(time) == len("2026-01-01T00:00:00.000Z") and time.endswith("Z")
    assert document == {
        "level": "info",
        "service": "router",
        "logger": "router.requests",
        "message": "request r1 ended",
        "request_id": "r1",
        "seconds": 0.25,
        "tenant": 'quo"ted\n',
    }


def test_a_json_line_holds_the_exception() -> None:
    try:
        raise ValueError("bad")
    except ValueError as error:
        failed = record()
        failed.exc_info = (type(error), error, error.__traceback__)
    line = JsonFormatter("router").format(failed)
    assert "\n" not in line and json.loads(line)["error"].endswith("ValueError: bad")


def test_a_text_line_ends_with_the_extras() -> None:
    line = TextFormatter("router").format(record(request_id="r1"))
    assert line.endswith("INFO router router.requests: request r1 ended request_id=r1")


@pytest.mark.parametrize("formatter", [JsonFormatter("draft"), TextFormatter("draft")])
def test_plain_lines_have_nothing_added(formatter: logging.Formatter) -> None:
    assert "taskName" not in formatter.format(record()) and "request_id" not in formatter.format(record())
