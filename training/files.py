"""Files and folders that are whole or absent: written aside, synced, then moved to their place."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from paceline.errors import ConfigError, PacelineError

_PART = ".part"
_OLD = ".old"


class StorageError(PacelineError):
    """The disk refused a write; what was written before is whole."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields a path to write to, which takes path's place at the end and is removed at an exception.

    Raises StorageError where the disk refuses.
    """
    part = path.with_name(path.name + _PART)
    with _naming(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            yield part
            _sync(part)
            part.replace(path)
            _sync(path.parent)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """As ``whole_file`` of a folder: the yielded one exists and is empty. One at path is replaced.

    A kill between the two renames leaves the old folder at path + ".old", and none at path.
    """
    part, old = path.with_name(path.name + _PART), path.with_name(path.name + _OLD)
    with _naming(path):
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            yield part
            for file in part.iterdir():
                _sync(file)
            shutil.rmtree(old, ignore_errors=True)
            if path.exists():
                path.replace(old)
            part.replace(path)
            _sync(path.parent)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        shutil.rmtree(old, ignore_errors=True)


def write_json(path: Path, value: object) -> None:
    """Indented. Raises StorageError."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Raises StorageError."""
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8")


def read_json(path: Path) -> Any:
    """Raises ConfigError for a file that is no JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): remove it, or name another --out") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds no JSON object: remove it, or name another --out")
    return value


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written ({error.strerror or error}): free some space or name another --out, then run "
            "the same command again; what was written before is whole"
        ) from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
