"""Where results go, and the name they carry."""

from __future__ import annotations

from pathlib import Path

from paceline.errors import ConfigError

_TARGET_FOLDER = "target"  # of what paceline inflate writes


def check_writable(path: str, name: str) -> None:
    """Before the measurement, not after it. Raises ConfigError."""
    if not path or path == "-":
        return
    if not Path(path).parent.is_dir():
        raise ConfigError(f"--{name} is {path}, but {Path(path).parent} is no folder; make it first")
    if Path(path).is_dir():
        raise ConfigError(f"--{name} is {path}, which is a folder; name a file")


def model_name(path: Path) -> str:
    """An inflated target lies in a folder of that name, its pair's in one of the pair's."""
    return path.parent.name if path.name == _TARGET_FOLDER else path.name
