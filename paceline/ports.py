"""Ports that a service is to listen on, looked at before anything that takes long."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.address import address_of, bare_host
from paceline.config_file import flag_of
from paceline.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Listener:
    """A port that a service will listen on, and the flag that names it."""

    flag: str
    host: str
    port: int  # 0: a free one, whose host is still to be looked at


def listeners_of(host: str, port: int, **sides: int) -> list[Listener]:
    """Those of one service: its own, 0 for a free one, and by field name those beside it, 0 for none."""
    beside = [Listener(flag_of(name), host, side) for name, side in sides.items() if side]
    return [Listener("--port", host, port), *beside]


def require_apart(listeners: Sequence[Listener]) -> None:
    """Raises ConfigError naming two flags of one service with the same port of the same host."""
    flags: dict[tuple[str, int], str] = {}
    for listener in listeners:
        other = flags.setdefault((listener.host, listener.port), listener.flag)
        if listener.port and other != listener.flag:
            raise ConfigError(f"{other} and {listener.flag} are both {listener.port}; give each a port of its own")


def check_ports(listeners: Sequence[Listener]) -> None:
    """Raises ConfigError naming the first that cannot be listened on beside those before it."""
    with contextlib.ExitStack() as stack:
        for listener in listeners:
            stack.enter_context(listen(listener))


def listen(listener: Listener) -> socket.socket:
    """A socket that listens there, for both IPs at [::], as gRPC does. Raises ConfigError naming the flag."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            bare_host(listener.host), listener.port, type=socket.SOCK_STREAM
        )[0]
        sock = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:  # of a host with an empty part, say
        raise cannot_listen(listener, error) from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(address)
        sock.listen()
    except OSError as error:
        sock.close()
        raise cannot_listen(listener, error) from error
    return sock


def cannot_listen(listener: Listener, error: OSError | UnicodeError) -> ConfigError:
    """What the error means, and what to do."""
    return ConfigError(
        f"{listener.flag} is {listener.port}, but nothing can listen on "
        f"{address_of(listener.host, listener.port)}: {_why(error)}"
    )


def _why(error: OSError | UnicodeError) -> str:
    name_own = "name an address of this machine, or 0.0.0.0 for all"
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return f"the host does not resolve; {name_own}"
    is_elsewhere = error.errno == errno.EADDRNOTAVAIL
    look = "see what listens there and whether two of these services would, or name another port"
    return f"{error.strerror or error}; {name_own if is_elsewhere else look}"
