"""The C extension, ``kernels.cpu_ops._native``: the module, or None and why."""

from __future__ import annotations

from typing import Any

EXTENSION: Any  # what cannot do without it asks ``kernels.round_tables.missing_tables`` first
MISSING: str  # "" where it is there

try:
    from kernels.cpu_ops import _native  # type: ignore[attr-defined]
except ImportError as error:
    EXTENSION, MISSING = None, str(error)
else:
    EXTENSION, MISSING = _native, ""
