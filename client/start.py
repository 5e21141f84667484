"""``python -m client.start NAME MODULE WORD...``: runs a module as a command that knows of Ctrl-C from its start on."""

from __future__ import annotations

import runpy
import sys

from client.terminal import run_in_terminal


def main() -> int:
    name, module = sys.argv[1:3]
    del sys.argv[1:3]

    def run() -> int:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return 0

    return run_in_terminal(name, run)


if __name__ == "__main__":
    sys.exit(main())
