"""``python -m client.start NAME MODULE WORD...``: runs MODULE.main as a command that knows of Ctrl-C from its start."""

from __future__ import annotations

import importlib
import signal
import sys

from client.terminal import run_in_terminal
from paceline.interrupt import ending_at_ctrl_c


def main() -> int:
    """The exit code of MODULE.main."""
    name, module, *argv = sys.argv[1:]

    def run() -> int:
        with ending_at_ctrl_c(name):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked by ``become``, for Python's own start
            program = importlib.import_module(module)
        return program.main(argv)

    return run_in_terminal(name, run)


if __name__ == "__main__":
    sys.exit(main())
