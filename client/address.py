"""The address of a service, as a user writes it."""

from __future__ import annotations

from client.fit import require_fit

_GRPC_SCHEMES = ("dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:")  # gRPC's own names for addresses
_FORM = "host:port, like 127.0.0.1:7100, without http:// in front"


def require_address(address: object, name: str) -> None:
    """Raises InvalidInputError for what cannot be one: empty, a URL, without a port, an IPv6 host without brackets."""
    require_fit(isinstance(address, str), name, address, f"a str, {_FORM}")
    text = str(address)
    require_fit(text.startswith(_GRPC_SCHEMES) or _is_host_and_port(text), name, address, _FORM)


def _is_host_and_port(text: str) -> bool:
    host, _, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if is_bracketed else host
    is_host = bare.isprintable() and bool(bare) and not set(bare) & set("/[] ") and (is_bracketed or ":" not in bare)
    return is_host and port.isascii() and port.isdecimal() and 0 < int(port) < 65536
