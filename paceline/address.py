"""Addresses, host:port, and URLs."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

PORTS = "a port is 1 to 65535"  # for the messages of those who refuse what ``parse_address`` does


class HostPort(NamedTuple):
    """The two parts of an address."""

    host: str  # without the brackets of an IPv6 host
    port: int  # 1 to 65535

    @property
    def url_host(self) -> str:
        """With the brackets."""
        return f"[{self.host}]" if ":" in self.host else self.host


def parse_address(text: str) -> HostPort | None:
    """None for what is no host:port: a URL, without a port, an IPv6 host without brackets."""
    host, _, digits = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if is_bracketed else host
    is_host = bare.isprintable() and bool(bare) and not set(bare) & set("/[] ") and (is_bracketed or ":" not in bare)
    is_port = digits.isascii() and digits.isdecimal() and 0 < int(digits) < 65536
    return HostPort(bare, int(digits)) if is_host and is_port else None


def is_http_url(text: str) -> bool:
    """Whether it is http or https, with a host; without a port it is the scheme's."""
    if not text.isprintable() or " " in text:  # urlsplit leaves out tabs and ends of lines
        return False
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:  # of brackets, or of a port that is none
        return False
    return url.scheme in ("http", "https") and bool(url.hostname) and port != 0


def host_of(address: str) -> str:
    """Without the brackets of an IPv6 host."""
    return bare_host(address.rpartition(":")[0])


def address_of(host: str, port: int) -> str:
    """host: an IPv6 one with brackets or without."""
    return f"{HostPort(bare_host(host), port).url_host}:{port}"


def bare_host(host: str) -> str:
    """Without the brackets of an IPv6 host."""
    return host.strip("[]")
