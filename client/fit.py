"""Whether a value that a program hands to the client fits its place, so that it is refused by name before a call."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import TypeGuard

from paceline.errors import InvalidInputError

_SHOWN_CHARS = 60


def require_fit(fits: bool, name: str, value: object, expected: str) -> None:
    """Raises InvalidInputError with the place's name, the value and what belongs there."""
    if not fits:
        text = repr(value)
        shown = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."
        raise InvalidInputError(f"{name} is {shown}; it must be {expected}")


def require_text(value: object, name: str) -> None:
    """Raises InvalidInputError for what is no str, and for one that holds bytes which were no UTF-8."""
    require_fit(isinstance(value, str), name, value, "a str")
    require_fit(is_unicode(str(value)), name, value, "text that UTF-8 can carry, without lone surrogates")


def is_unicode(text: str) -> bool:
    """False where it holds lone surrogates, as Python reads bytes that were no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_whole(value: object, *, bits: int = 64) -> TypeGuard[int]:
    """A whole number, numpy's included, of at most so many bits, the sign apart; no bool."""
    return isinstance(value, Integral) and not isinstance(value, bool) and -(2**bits) < int(value) < 2**bits


def is_number(value: object) -> TypeGuard[float]:
    """A number that a float can hold; no bool."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def is_duration(value: object) -> TypeGuard[float]:
    """A finite number of seconds above 0."""
    return is_number(value) and math.isfinite(value) and value > 0
