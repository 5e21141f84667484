"""RunLog: train/log.jsonl, one object a line, cut back to a checkpoint when a run goes on from there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from training.files import StorageError, write_text
from training.unroll import DepthFigures


class RunLog:
    """Lines are whole: each is one write."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def cut(self, step: int) -> None:
        """Drops what was logged past a step. Raises StorageError."""
        lines = [line for line in self.lines() if line["step"] <= step]
        write_text(self._path, "".join(json.dumps(line) + "\n" for line in lines))

    def add(
        self, step: int, figures: DepthFigures, *, values: Mapping[str, float] | None = None, held_out: bool = False
    ) -> None:
        """values: what else the line says. Raises StorageError."""
        line: Mapping[str, Any] = {
            "step": step,
            "held_out": held_out,
            **(values or {}),
            "chain_length": figures.chain_length,
            **asdict(figures),
        }
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise StorageError(
                f"{self._path} cannot be written: {error.strerror}; free some space, then go on"
            ) from error

    def lines(self) -> list[dict[str, Any]]:
        """All of them; a last one that a kill cut short is left out."""
        if not self._path.exists():
            return []
        whole, _, _ = self._path.read_text(encoding="utf-8").rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]
