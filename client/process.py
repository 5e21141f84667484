"""One service as a child process: started, awaited, stopped, killed, and started again on its port."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from client.environment import program_environment
from paceline.errors import PacelineError, UnavailableError

_GUARD = Path(__file__).with_name("guard.py")
_READY = "ready "
_LOG_LINES_SHOWN = 15
_OWN_WORDS = (2, 3, 4)  # exit codes of a service that said on its last line what is wrong


class ServiceStartError(PacelineError):
    """A service did not start; carries what it said and, where it had one, its own exit code."""

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code

    @property
    def is_refusal(self) -> bool:
        """Whether the message is the service's own word on what is wrong, to which its log adds nothing."""
        return self.exit_code in _OWN_WORDS


@dataclass(frozen=True, slots=True)
class ServiceUsage:
    """What a service has used so far, its own child processes included."""

    rss_bytes: int
    cpu_s: float


class ServiceProcess:
    """``python -m MODULE FLAG...`` in a process group of its own, its output in log_path.

    The program prints ``ready HOST:PORT`` once it serves. It is killed when the thread that started it dies. Owns
    the process: ``stop`` or ``kill`` it. Used by one thread at a time.
    """

    def __init__(self, name: str, module: str, *, flags: Sequence[str], port: int, log_path: Path) -> None:
        self.name = name
        self.log_path = log_path
        self.environment: Mapping[str, str] = {}  # of the program, besides this process's own
        self._command = [sys.executable, "-m", module, *flags]
        self._port = port
        self._address = ""
        self._serving = False
        self._output_seen = threading.Event()  # the ready line, or the end of its output
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[str] | None = None
        self._reader: threading.Thread | None = None

    @property
    def address(self) -> str:
        """host:port that it serves; stays through a restart. Empty before the first ``wait_ready``."""
        return self._address

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal."""
        return None if self._process is None else self._process.poll()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts it and returns at once. Its port is a free one at first, later the one that it had."""
        assert not self.running, f"{self.name} runs already"
        self.kill()  # what an earlier process may have left in its group
        self._serving = False
        self._output_seen.clear()
        self._log = self.log_path.open("a", encoding="utf-8")
        guard = [sys.executable, "-I", "-S", str(_GUARD), str(os.getpid())]
        self._process = subprocess.Popen(
            [*guard, *self._command, "--port", str(self._port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,  # Ctrl-C reaches the launcher alone, which stops the services in order
            env={**program_environment(), **self.environment},
        )
        self._reader = threading.Thread(target=self._read_output, args=(self._process, self._log), daemon=True)
        self._reader.start()

    def has_answered(self, timeout_s: float) -> bool:
        """Whether it serves or its output has ended, waited for this long; ``wait_ready`` then says which at once."""
        return self._output_seen.wait(timeout_s)

    def wait_ready(self, deadline_s: float) -> str:
        """The address, once it serves. deadline_s is on the monotonic clock. Raises ServiceStartError."""
        assert self._process is not None, f"{self.name} was never started"
        self._output_seen.wait(max(0.0, deadline_s - time.monotonic()))
        if self._serving:
            return self._address
        try:  # its output has ended without the line, or the time is over
            raise self._start_error(self._process.wait(max(0.0, deadline_s - time.monotonic())))
        except subprocess.TimeoutExpired:
            message = f"the {self.name} was not ready in time; its log {self.log_path} ends:\n{self._tail()}"
            raise ServiceStartError(message) from None

    def check_running(self) -> None:
        """Raises ServiceStartError where it has ended though it was ready."""
        code = self.exit_code
        if code is not None:
            message = (
                f"the {self.name} ended before all were linked ({end_in_words(code)}); its log {self.log_path} ends:"
            )
            raise ServiceStartError(f"{message}\n{self._tail()}")

    def restart(self, *, timeout_s: float) -> str:
        """Starts a process that has ended again, on the port that it had. Raises ServiceStartError."""
        self.start()
        return self.wait_ready(time.monotonic() + timeout_s)

    def terminate(self) -> None:
        """Asks it to drain and end (SIGTERM); returns at once."""
        if self.running:
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it and its own children without a word (SIGKILL), and waits until it is gone."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        self._close_output()

    def stop(self, *, grace_s: float) -> int | None:
        """SIGTERM, then SIGKILL after grace_s; returns the exit code. None if it was never started."""
        self.terminate()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
        self.kill()
        return self.exit_code

    def usage(self) -> ServiceUsage:
        """Memory and CPU time until now, its own children included. Raises UnavailableError where it has ended."""
        try:
            processes = [psutil.Process(self.pid), *psutil.Process(self.pid).children(recursive=True)]
            return ServiceUsage(
                rss_bytes=sum(process.memory_info().rss for process in processes),
                cpu_s=sum(sum(process.cpu_times()[:2]) for process in processes),
            )
        except psutil.NoSuchProcess as error:
            raise UnavailableError(f"the {self.name} has ended; its log is {self.log_path}") from error

    def _signal(self, number: signal.Signals) -> None:
        # The group outlives its leader while a child of the service is left, so it is signalled even then.
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def _read_output(self, process: subprocess.Popen[str], log: IO[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(_READY) and not self._serving:
                self._address = line.removeprefix(_READY).strip()
                self._port = int(self._address.rpartition(":")[2])
                self._serving = True
                self._output_seen.set()
            else:
                log.write(line)
        self._output_seen.set()

    def _close_output(self) -> None:
        if self._reader is not None and self._process is not None and self._log is not None:
            self._reader.join()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._log.close()
            self._reader = None

    def _start_error(self, code: int) -> ServiceStartError:
        if code in _OWN_WORDS:
            last = self._tail().rpartition("\n")[2]
            return ServiceStartError(f"the {self.name} did not start: {last}", exit_code=code)
        message = f"the {self.name} did not start ({end_in_words(code)}); its log {self.log_path} ends:\n{self._tail()}"
        return ServiceStartError(message)

    def _tail(self) -> str:
        lines = self.log_path.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()
        return "\n".join(lines[-_LOG_LINES_SHOWN:]) or "(nothing)"


def end_in_words(code: int | None) -> str:
    """Of a process: its exit code, or the signal that ended it."""
    return f"exit code {code}" if code is None or code >= 0 else f"signal {-code}, {signal.strsignal(-code)}"
