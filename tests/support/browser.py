"""A headless Chromium, driven over its debugging pipe: open a page, run a script in it, take a picture."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.waiting import WAIT_S

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # which root may not have
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--remote-debugging-pipe",
)


class Browser:
    """One page. Messages are JSON, each ended by a zero byte, written to the browser's descriptor 3 and read from 4."""

    def __init__(self, write_end: int, read_end: int) -> None:
        self._write_end = write_end
        self._read_end = read_end
        self._buffer = b""
        self._numbers = itertools.count(1)
        self._session = ""
        self.console: list[str] = []  # errors and warnings of the page

    def open(self, url: str, *, width: int = 1280, height: int = 900) -> None:
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.send("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression, awaited. Raises AssertionError where it throws."""
        reply = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def wait(self, script: str, *, timeout_s: float = WAIT_S) -> Any:
        """The expression's value once it is true."""
        deadline = time.monotonic() + timeout_s
        while not (value := self.run(script)):
            assert time.monotonic() < deadline, f"never true: {script}; console: {self.console}"
            time.sleep(0.05)
        return value

    def picture(self, path: Path) -> None:
        """A PNG of the whole page."""
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def send(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write_end, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._read()
            if reply.get("id") == number:
                assert "error" not in reply, reply
                return reply["result"]
            self._note(reply)

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.console.append(json.dumps(params["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.console.append(params["entry"]["text"])

    def _read(self) -> Any:
        while b"\0" not in self._buffer:
            data = os.read(self._read_end, 1 << 20)
            assert data, "the browser has ended"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Ends with its process. To be called only where PROGRAM is there."""
    assert PROGRAM is not None
    to_read, to_write = os.pipe(), os.pipe()  # what the browser reads, and what it writes
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        ends = (str(to_read[0]), str(to_write[1]))
        launcher = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
        command = ["bash", "-c", launcher, "bash", *ends, PROGRAM, *_FLAGS, f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            command,
            pass_fds=(to_read[0], to_write[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read[0])
        os.close(to_write[1])
        try:
            yield Browser(to_read[1], to_write[0])
        finally:
            process.kill()
            process.wait()
            os.close(to_read[1])
            os.close(to_write[0])
