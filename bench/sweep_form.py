"""What a measured sweep must have for its readers: kinds of values, by name."""

from __future__ import annotations

import dataclasses
from typing import Any

from bench.target_link import StepSample

_NUMBER = int | float
_KNOWN = int | float | None  # null where nothing was measured
_LEAST_STEP = sum(field.default is dataclasses.MISSING for field in dataclasses.fields(StepSample))


@dataclasses.dataclass(frozen=True, slots=True)
class _Each:
    """A list, or the values of an object with any names."""

    kind: type[list[Any]] | type[dict[str, Any]]
    form: Any
    least: int = 0


def _list(form: Any, *, least: int = 0) -> _Each:
    return _Each(list, form, least)


_PAIRS = _list((_NUMBER, _NUMBER), least=1)
_PERCENTILES = {"p50": _KNOWN, "p99": _KNOWN}
_POINT = {
    "load": str,
    "is_open": bool,
    "phases": _PAIRS,
    "ramp_s": _NUMBER,
    "policy": str,
    "repeat": int,
    "first_number": int,
    "tokens_per_s": _NUMBER,
    "ttft_ms": _PERCENTILES,
    "tpot_ms": _PERCENTILES,
    "rounds": int,
    "speculative_rounds": int,
    "mean_accepted_length": _KNOWN,
    "round_ms": _KNOWN,
    "is_disturbed": bool,
    "steps": _list(_list(_NUMBER, least=_LEAST_STEP)),
}
_SWEEP = {
    "settings": {"targets": int, "drafts": int, "max_tokens": int, "seed": int, "warm_up_seconds": _NUMBER},
    "calibration": {
        "step_ms": _list((_NUMBER, _NUMBER)),
        "propose_ms": _list({"shape": (int, int, int), "by_sessions": _PAIRS}),
    },
    "requests": {
        "prompt_tokens": _list(int | None, least=1),
        "output_tokens": _list(int | None, least=1),
        "drafts": _Each(dict, _list((int, int), least=1)),
    },
    "points": _list(_POINT, least=1),
}
_FAILURE = {"load": str, "policy": str, "repeat": int, "requests": int, "error": str}


def is_sweep(value: Any) -> bool:
    """Whether it has all that an entry of sweeps has, in the form that ``sweep_document`` gives it."""
    return _fits(value, _SWEEP) and _fits(value.get("failed", []), _list(_FAILURE))


def _fits(value: Any, form: Any) -> bool:
    """form: a type; an object's by name; a list's of so many values; or one for each value."""
    if isinstance(form, dict):
        return isinstance(value, dict) and all(
            name in value and _fits(value[name], part) for name, part in form.items()
        )
    if isinstance(form, tuple):
        return isinstance(value, list) and len(value) == len(form) and all(map(_fits, value, form))
    if isinstance(form, _Each):
        if not isinstance(value, form.kind) or len(value) < form.least:
            return False
        values = value.values() if isinstance(value, dict) else value
        return all(_fits(part, form.form) for part in values)
    return isinstance(value, form)
