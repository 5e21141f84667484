"""The roles that a chat template takes."""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import nodes

# What templates know without naming it: most put the role itself between their marks. Such a one renders a role that no
# model has seen as well, and most that tell roles apart leave the messages of others out without a word.
COMMON_ROLES = ("system", "user", "assistant", "tool")


def roles_of(template: nodes.Template) -> tuple[str, ...]:
    """The common ones, and those that the template compares a message's role with."""
    named = {role for compare in template.find_all(nodes.Compare) for role in _compared(compare)}
    return (*COMMON_ROLES, *sorted(named.difference(COMMON_ROLES, [""])))


def _compared(compare: nodes.Compare) -> Iterator[str]:
    sides = [compare.expr, *(operand.expr for operand in compare.ops)]
    if any(_is_role(part) for side in sides for part in (side, *side.find_all(nodes.Expr))):
        for side in sides:
            parts = side.items if isinstance(side, nodes.List | nodes.Tuple) else [side]
            yield from (part.value for part in parts if isinstance(part, nodes.Const) and isinstance(part.value, str))


def _is_role(part: nodes.Node) -> bool:
    """``message.role``, ``message['role']``, or a variable of that name."""
    if isinstance(part, nodes.Getitem):
        return isinstance(part.arg, nodes.Const) and part.arg.value == "role"
    return (isinstance(part, nodes.Getattr) and part.attr == "role") or (
        isinstance(part, nodes.Name) and part.name == "role"
    )
