"""What counts as an address, for clients and services alike."""

from __future__ import annotations

import pytest

from paceline.address import HostPort, is_http_url, parse_address


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


@pytest.mark.parametrize(
    "text", ["http://a:4318/v1/traces", "https://a", "HTTP://a.b:1/", "http://[::1]:4318/v1/traces"]
)
def test_a_scheme_of_the_web_and_a_host_are_a_url(text: str) -> None:
    assert is_http_url(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "foo bar",
        "a:4318",
        "grpc:/x",
        "grpc://a:4317",
        "http:/a/v1/traces",
        "http://",
        "http://:4318/v1/traces",
        "http://a:0/",
        "http://a:65536/",
        "http://a:x/",
        "http://[::1/",
        "http://a b/",
        "http://a\t/",
    ],
)
def test_what_has_no_such_scheme_host_or_port_is_none(text: str) -> None:
    assert not is_http_url(text)
