"""Typed reading of a model's config.json: every complaint names the file, the field and its value."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import ModelLoadError

_REQUIRED = object()


@dataclass(frozen=True, slots=True)
class Fields:
    """A JSON object with its origin. A field that is absent or null takes the default; without one it is an error."""

    values: Mapping[str, object]
    origin: str

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def text(self, name: str, default: object = _REQUIRED) -> str:
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.error(name, value, "a string")
        return value

    def whole(self, name: str, default: object = _REQUIRED) -> int:
        """A whole number of 1 or more."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(name, value, "a whole number of 1 or more")
        return value

    def real(self, name: str, default: object = _REQUIRED) -> float:
        """A finite number above 0."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise self.error(name, value, "a finite number above 0")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, value, "true or false")
        return value

    def ids(self, name: str) -> tuple[int, ...]:
        """One whole number of 0 or more, or a list of them; empty where absent."""
        value = self._get(name, [])
        items = value if isinstance(value, (list, tuple)) else [value]
        if any(isinstance(item, bool) or not isinstance(item, int) or item < 0 for item in items):
            raise self.error(name, value, "a token or layer id of 0 or more, or a list of them")
        return tuple(items)

    def child(self, name: str) -> Fields:
        """A nested object; empty where absent."""
        value = self._get(name, {})
        if not isinstance(value, Mapping):
            raise self.error(name, value, "an object")
        return Fields(value, f"{self.origin}, {name}")

    def require(self, name: str, allowed: object) -> None:
        """The field is absent or has the one value that is supported."""
        value = self._get(name, allowed)
        if value != allowed:
            raise self.error(name, value, f"{allowed!r}: this engine supports nothing else")

    def error(self, name: str, value: object, wanted: str) -> ModelLoadError:
        return ModelLoadError(f"{self.origin}: {name} is {value!r}; it must be {wanted}")

    def _get(self, name: str, default: object) -> object:
        value = self.values.get(name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise ModelLoadError(f"{self.origin}: {name} is missing; it is needed to build the model")
        return default


def read_fields(path: Path) -> Fields:
    """Reads one JSON object. Raises ModelLoadError where the file is missing or not one."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelLoadError(f"cannot read {path}: {error.strerror}; a model folder needs a config.json") from error
    except ValueError as error:
        raise ModelLoadError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ModelLoadError(f"{path} holds a {type(values).__name__}; it must hold one JSON object")
    return Fields(values, str(path))
