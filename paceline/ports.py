"""Ports that a service is to listen on, looked at before anything that takes long."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Listener:
    """A port that a service will listen on, and the flag that names it."""

    flag: str
    host: str
    port: int  # 0: a free one, whose host is still to be looked at


def listeners_of(host: str, **ports: int) -> list[Listener]:
    """Those of one service, by field name; 0 is none, or a free one."""
    return [Listener("--" + name.replace("_", "-"), host, port) for name, port in ports.items() if port]


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
            try:
                stack.enter_context(_listening(listener))
            except OSError as error:
                raise ConfigError(
                    f"{listener.flag} is {listener.port}, but nothing can listen on {listener.host}:{listener.port}: "
                    f"{_why(error.errno or 0)}"
                ) from error


def _why(number: int) -> str:
    """What the error means, and what to do. number: the system's, or one of getaddrinfo's, which are below 0."""
    name_own = "name an address of this machine, or 0.0.0.0 for all"
    if number < 0:
        return f"the host does not resolve; {name_own}"
    is_elsewhere = number == errno.EADDRNOTAVAIL
    look = "see what listens there and whether two of these services would, or name another port"
    return f"{os.strerror(number)}; {name_own if is_elsewhere else look}"


@contextlib.contextmanager
def _listening(listener: Listener) -> Iterator[None]:
    host = listener.host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, listener.port), family=family):
        yield
