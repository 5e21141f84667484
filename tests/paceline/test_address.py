"""What counts as an address, for clients and services alike."""

from __future__ import annotations

import pytest

from paceline.address import HostPort, parse_address


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("127.0.0.1:7100", ("127.0.0.1", 7100)),
        ("router.ns.svc:1", ("router.ns.svc", 1)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_a_host_and_a_port_are_an_address(text: str, parts: tuple[str, int]) -> None:
    assert parse_address(text) == parts


def test_an_ipv6_host_has_its_brackets_in_a_url_alone() -> None:
    place = parse_address("[::1]:80")
    assert place is not None and (place.host, place.url_host) == ("::1", "[::1]")
    assert HostPort("router.svc", 80).url_host == "router.svc"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a:",
        ":1",
        "a:0",
        "a:65536",
        "a:1x",
        "a:\u0661",
        "::1:2",
        "[]:1",
        "[::1:2",
        "http://a:1",
        "a b:1",
        "a\n:1",
    ],
)
def test_anything_else_is_none(text: str) -> None:
    assert parse_address(text) is None
