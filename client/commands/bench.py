"""``paceline bench``: becomes ``python -m bench``, which may use what the client may not import."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from client.commands.command import Command, become


def main(argv: Sequence[str]) -> NoReturn:
    become("bench", argv)


COMMAND = Command(
    "bench", "measure throughput and latency; bench sweep: policies over loads; bench simulate: fleets", main
)
