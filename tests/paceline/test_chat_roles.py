"""Which roles a template takes, as its source tells."""

from __future__ import annotations

import pytest

from paceline.chat_template import ChatTemplate


@pytest.mark.parametrize(
    ("source", "others"),
    [
        ("{{ messages[0]['role'] }}", ()),
        ("{% if messages[0]['role'] == 'developer' %}x{% endif %}", ("developer",)),
        (
            "{% if messages[0].role in ('user', 'ipython') or 'function' == messages[0]['role'] %}x{% endif %}",
            ("function", "ipython"),
        ),
        ("{% set role = messages[0].role %}{% if role not in ['critic', 'user'] %}x{% endif %}", ("critic",)),
        ("{% if messages[0].role | lower == 'observation' %}x{% endif %}", ("observation",)),
        (
            "{% if messages[0].content == 'user' or 'role' in messages[0] or messages[0].role != '' %}x{% endif %}",
            (),
        ),
        ("{% if (messages[0].role == 'critic') != (messages[0].content == 'no role') %}x{% endif %}", ("critic",)),
    ],
)
def test_the_common_roles_and_those_compared_with_are_taken(source: str, others: tuple[str, ...]) -> None:
    assert ChatTemplate(source, special_tokens={}).roles == ("system", "user", "assistant", "tool", *others)
