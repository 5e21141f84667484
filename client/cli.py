"""The ``paceline`` command. Exit codes are those of the typed errors; docs/usage.md lists them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from client.terminal import open_missing_streams, run_in_terminal
from paceline.interrupt import ending_at_ctrl_c


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand and returns its exit code; errors that a user can mend are one line on stderr."""
    open_missing_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    name = " ".join(["paceline", *words[:1]])

    def run() -> int:
        with ending_at_ctrl_c(name):  # the import takes half a second
            from client.commands.table import run_command
        return run_command(words)

    return run_in_terminal(name, run)


if __name__ == "__main__":
    sys.exit(main())
