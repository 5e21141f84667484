"""A connection of a process with itself, for rehearsals: what travels by it takes the kernel's way of all rounds."""

from __future__ import annotations

import socket

LONGEST_WAY_S = 0.001  # what takes longer is there the next time


def loopback_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of one TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        ours = socket.create_connection(door.getsockname())
        theirs, address = door.accept()
        while address != ours.getsockname():  # of another process
            theirs.close()
            theirs, address = door.accept()
    return ours, theirs
