"""``paceline train-head``: becomes ``python -m training``, which may use the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from client.commands.command import Command, become


def main(argv: Sequence[str]) -> NoReturn:
    become("train-head", "training.__main__", argv)


COMMAND = Command("train-head", "make data, train an EAGLE-3 head for a target, measure and export it", main)
