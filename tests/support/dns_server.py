"""A DNS server on loopback, in a network of its own: headless names whose addresses a test sets."""

from __future__ import annotations

import fcntl
import socket
import socketserver
import struct
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

_SIOCSIFFLAGS, _IFF_UP_RUNNING = 0x8914, 0x41
_NAME_ERROR, _ANSWERS = 0x8183, 0x8180
_A, _IN, _TTL_S = 1, 1, 5


def enter_own_network(folder: Path) -> None:
    """Brings up loopback and asks 127.0.0.1 for names. For a process that unshare gave its own net and mounts."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP_RUNNING))
    resolv = folder / "resolv.conf"
    resolv.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:2\n")
    subprocess.run(["mount", "--bind", str(resolv), "/etc/resolv.conf"], check=True)


class DnsServer:
    """Answers A questions over UDP; every other type has no records. Use it as a context manager."""

    def __init__(self) -> None:
        self._names: dict[str, Sequence[str]] = {}
        names = self._names

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                question, reply_to = self.request
                reply_to.sendto(_reply(question, names), self.client_address)

        self._server = socketserver.ThreadingUDPServer(("127.0.0.1", 53), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def set(self, name: str, *addresses: str) -> None:
        self._names[name] = addresses

    def __enter__(self) -> DnsServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _reply(question: bytes, names: dict[str, Sequence[str]]) -> bytes:
    labels, at = [], 12
    while length := question[at]:
        labels.append(question[at + 1 : at + 1 + length].decode())
        at += 1 + length
    asked = question[12 : at + 5]  # with type and class
    (kind,) = struct.unpack_from(">H", question, at + 1)
    addresses = names.get(".".join(labels).lower())
    found = [] if addresses is None or kind != _A else addresses
    flags = _NAME_ERROR if addresses is None else _ANSWERS
    head = question[:2] + struct.pack(">HHHHH", flags, 1, len(found), 0, 0)
    records = (struct.pack(">HHHIH", 0xC00C, _A, _IN, _TTL_S, 4) + socket.inet_aton(address) for address in found)
    return head + asked + b"".join(records)
