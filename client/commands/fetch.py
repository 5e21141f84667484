"""``paceline fetch``: the default model's weights."""

from __future__ import annotations

from collections.abc import Sequence

import paceline.fetch
from client.commands.command import Command


def main(argv: Sequence[str]) -> int:
    return paceline.fetch.main(list(argv), prog="paceline fetch")


COMMAND = Command("fetch", "fetch the default model's weights", main)
