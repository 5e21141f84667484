"""The names of policies on command lines and in results: off, adaptive, or a tree like 2,3,5."""

from __future__ import annotations

from bench.workload import PLAIN, SPECULATIVE, Variant
from paceline.errors import ConfigError
from paceline.types import TreeShape

OFF, ADAPTIVE = "off", "adaptive"


def parse_policies(text: str) -> tuple[str, ...]:
    """Of names with ; between. Raises ConfigError, or InvalidInputError for a shape that no tree has."""
    names = tuple(name.strip() for name in text.split(";"))
    if len(set(names)) < len(names):
        raise ConfigError(f"--policies is {text!r}; it names a policy twice: leave one out")
    for name in names:
        if name != ADAPTIVE:
            fixed_shape(name)
    return names


def fixed_shape(name: str) -> TreeShape | None:
    """Of a policy with one setting for all; None where that is off. Raises as ``parse_policies`` does."""
    return None if name == OFF else parse_shape(name, "policies", also=f"{OFF}, {ADAPTIVE} or ")


def variant_of(name: str) -> Variant:
    """What requests ask of a router that decides adaptively."""
    if name == ADAPTIVE:
        return Variant(SPECULATIVE)
    shape = fixed_shape(name)
    return Variant(PLAIN) if shape is None else Variant(SPECULATIVE, shape)


def parse_shape(text: str, flag_name: str, *, also: str = "") -> TreeShape:
    """Of steps,topk,nodes. also: what else the flag takes, for the message.

    Raises ConfigError, or InvalidInputError for a shape that no tree has.
    """
    numbers = [part.strip() for part in text.split(",")]
    if len(numbers) != 3 or not all(number.isdecimal() for number in numbers):
        raise ConfigError(f"--{flag_name} holds {text!r}; it takes {also}steps,topk,nodes, with ; between")
    return TreeShape(*map(int, numbers))


def shape_name(shape: TreeShape) -> str:
    """The policy of this tree for all."""
    return f"{shape.num_steps},{shape.eagle_topk},{shape.num_draft_tokens}"
