"""The ``paceline`` command. Exit codes are those of the typed errors; docs/usage.md lists them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from client.terminal import run_in_terminal


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand and returns its exit code; errors that a user can mend are one line on stderr."""
    words = list(sys.argv[1:] if argv is None else argv)

    def run() -> int:
        from client.commands.table import run_command  # half a second, in which Ctrl-C may come

        return run_command(words)

    return run_in_terminal(" ".join(["paceline", *words[:1]]), run)


if __name__ == "__main__":
    sys.exit(main())
