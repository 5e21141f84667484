"""TpWorkers: the processes of a host's ranks beside rank 0."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from paceline.config import to_argv
from target_service.config import TargetConfig

_STOP_TIMEOUT_S = 10.0
_RANK_LOST = 1
_log = logging.getLogger(__name__)


class TpWorkers:
    """Starts this host's ranks but rank 0 at once. Owns them until ``close`` or ``kill``.

    A rank that ends before that takes this process down at once, whatever its threads wait for: the group cannot go on
    without it, and a GPU would wait for it for ever. A worker reads the end of its standard input as rank 0's death, so
    none outlives this process, however it ends.
    """

    def __init__(self, config: TargetConfig) -> None:
        self._place = contextlib.ExitStack()
        self.init_method = f"tcp://{config.dist_init_addr}"
        if config.nnodes == 1:
            folder = self._place.enter_context(tempfile.TemporaryDirectory(prefix="paceline-tp-"))
            self.init_method = (Path(folder) / "ranks").as_uri()
        self._closing = False
        ranks = [rank for rank in config.own_ranks if rank > 0]
        self._processes = [self._start(config, rank) for rank in ranks]
        for rank, process in zip(ranks, self._processes, strict=True):
            threading.Thread(target=self._watch, args=(rank, process), name=f"rank {rank} watch", daemon=True).start()

    def close(self) -> None:
        """After rank 0's last plan: waits for the ranks, and kills what does not end."""
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_TIMEOUT_S)
        self.kill()

    def wait(self) -> None:
        """Returns once all have ended as rank 0 told them to; a rank that ends otherwise ends this process, too."""
        for process in self._processes:
            process.wait()

    def kill(self) -> None:
        """Ends the ranks at once; for those that wait for a plan that will not come."""
        self._closing = True
        for process in self._processes:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
        self._place.close()

    def _start(self, config: TargetConfig, rank: int) -> subprocess.Popen[bytes]:
        rank_flags = [f"--rank={rank}", f"--init-method={self.init_method}"]
        command = [sys.executable, "-m", "target_service.tp_worker", *to_argv(config), *rank_flags]
        # A group of its own: Ctrl-C reaches rank 0 alone, which drains and then ends the others.
        return subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0)

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        if self._closing or code == 0:  # rank 0 told it to end
            return
        _log.error("rank %d ended with code %d; the target ends, too", rank, code)
        self._place.close()
        os._exit(_RANK_LOST)


def end_with_lost_rank() -> None:
    """For rank 0, once a rank on another host is gone: ends this process, and with it the ranks of this host."""
    _log.error("a rank on another host is gone; the target ends, too")
    os._exit(_RANK_LOST)


def remove_meeting_place(init_method: str) -> None:
    """For a rank that rank 0's death leaves alone: nobody else is left to tidy up. Any rank may be the first."""
    url = urlsplit(init_method)
    if url.scheme == "file":
        place = Path(url.path)
        with contextlib.suppress(OSError):  # another rank was faster, or somebody keeps other files there
            place.unlink(missing_ok=True)
            place.parent.rmdir()


def end_process(code: int) -> NoReturn:
    """Ends a rank's process without the interpreter's clean-up: NCCL's own would wait for its peers and for every
    captured graph, and the driver frees all that a process had."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
