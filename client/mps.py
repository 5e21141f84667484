"""MpsDaemon: NVIDIA's Multi-Process Service, for the services of a fleet that share a GPU."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping

from paceline.errors import ConfigError

_PROGRAM = "nvidia-cuda-mps-control"
_SILENT = -1  # in place of an exit code

_log = logging.getLogger(__name__)


class MpsDaemon:
    """Owns the daemon and its folder from ``start`` to ``stop``.

    Without it the driver gives a GPU to one process at a time, for milliseconds each: a draft then waits for the slice
    of the target whose verify it should run beside. Only programs with this ``environment`` are its clients; no setting
    of the GPU changes. In return a fault of one client on the GPU ends the others on it.
    """

    def __init__(self, *, answer_s: float = 10.0) -> None:
        """answer_s: that the program may take for one call. Raises ConfigError where it is missing."""
        if shutil.which(_PROGRAM) is None:
            raise ConfigError(
                f"--mps is set, but {_PROGRAM} is not on the PATH: install it, it comes with NVIDIA's driver, or leave "
                "--mps out"
            )
        self._folder = ""
        self._answer_s = answer_s

    @property
    def environment(self) -> Mapping[str, str]:
        """For the services, once it was started."""
        return {"CUDA_MPS_PIPE_DIRECTORY": self._folder, "CUDA_MPS_LOG_DIRECTORY": self._folder}

    def start(self) -> None:
        """Raises ConfigError with what the program says, where it does not start."""
        self._folder = tempfile.mkdtemp(prefix="paceline-mps-")  # short: the daemon makes sockets in it
        code, said = self._control("-d")
        if code != 0:
            shutil.rmtree(self._folder)
            raise ConfigError(f"--mps: {_PROGRAM} does not start: {said}; leave --mps out")

    def stop(self) -> None:
        """Once no client runs. A second call does nothing. A daemon that does not quit keeps its folder: a warning says
        how to end it."""
        if not os.path.isdir(self._folder):
            return
        code, said = self._control(says="quit\n")
        if code == 0:
            shutil.rmtree(self._folder, ignore_errors=True)
            return
        by_hand = f"echo quit | CUDA_MPS_PIPE_DIRECTORY={self._folder} {_PROGRAM}"
        _log.warning("--mps: the daemon does not quit: %s; end it by hand: %s", said, by_hand)
        self._folder = ""

    def _control(self, *flags: str, says: str = "") -> tuple[int, str]:
        """Exit code, and what it says: never nothing where the code is not 0.

        Its output goes to a file: a daemon would keep a pipe open. The daemon sees all GPUs: where it sees some, its
        clients' CUDA_VISIBLE_DEVICES would count among those.
        """
        environment = {**os.environ, **self.environment}
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        with tempfile.TemporaryFile("w+") as output:
            try:
                done = subprocess.run(
                    [_PROGRAM, *flags],
                    input=says,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=self._answer_s,
                    env=environment,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return _SILENT, f"no answer for {self._answer_s:g} s"
            output.seek(0)
            said = output.read().strip()
        return done.returncode, said or (f"exit code {done.returncode}" if done.returncode else "")
