"""The C extension, ``kernels.cpu_ops._native``: the module, or None and why.

One that lacks a call of the sources beside it counts as none: it would fail in the midst of a round.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_SOURCES = Path(__file__).with_name("cpu_ops") / "csrc"
_METHOD = re.compile(r'^\s*\{"(\w+)",.*\bMETH_', re.MULTILINE)  # an entry of a PyMethodDef table

EXTENSION: Any  # what cannot do without it asks ``kernels.round_tables.missing_tables`` first
MISSING: str  # why there is none, and what to do; "" where it is there


def lacking(module: object, sources: Path) -> list[str]:
    """The calls that the C files of the folder define and the module has not; none where there is no such folder."""
    names = {name for path in sources.glob("*.c") for name in _METHOD.findall(path.read_text(encoding="utf-8"))}
    return sorted(name for name in names if not hasattr(module, name))


try:
    from kernels.cpu_ops import _native  # type: ignore[attr-defined]
except ImportError as error:
    EXTENSION, MISSING = None, f"{error}; install a C compiler and reinstall"
else:
    EXTENSION, MISSING = _native, ""
    if older := lacking(_native, _SOURCES):
        EXTENSION = None
        MISSING = f"{_native.__name__} was built from older sources, without {', '.join(older)}; run make setup"
