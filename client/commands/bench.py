"""``paceline bench``: becomes ``python -m bench``, which may use what the client may not import."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from client.commands.command import Command, become


def main(argv: Sequence[str]) -> NoReturn:
    become("bench", "bench.__main__", argv)


_HELP = "measure throughput and latency; bench router: a router's cost; sweep: policies over loads; simulate: fleets"
COMMAND = Command("bench", _HELP, main)
