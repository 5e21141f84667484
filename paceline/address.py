"""Parts of an address, host:port."""

from __future__ import annotations


def host_of(address: str) -> str:
    """Without the brackets of an IPv6 host."""
    return address.rpartition(":")[0].strip("[]")
