"""``paceline inflate``: becomes ``python -m bench.inflate``, which may use the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from client.commands.command import Command, become


def main(argv: Sequence[str]) -> NoReturn:
    become("inflate", "bench.inflate", argv)


COMMAND = Command("inflate", "give the default pair a large model's shape and cost", main)
