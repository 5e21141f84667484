"""The address of a service, as a user writes it."""

from __future__ import annotations

from client.fit import require_fit
from paceline.address import PORTS, parse_address

_GRPC_SCHEMES = ("dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:")  # gRPC's own names for addresses
_FORM = f"host:port, like 127.0.0.1:7100, without http:// in front; {PORTS}"


def require_address(address: object, name: str) -> None:
    """Raises InvalidInputError for what cannot be one: empty, a URL, without a port, an IPv6 host without brackets."""
    require_fit(isinstance(address, str), name, address, f"a str, {_FORM}")
    text = str(address)
    require_fit(text.startswith(_GRPC_SCHEMES) or parse_address(text) is not None, name, address, _FORM)
