"""A connection that broke because what served there has ended: by Ctrl-C, a kill, or a crash."""

from __future__ import annotations

import contextlib
import socket

from paceline.address import parse_address

_LOOK_S = 1.0


def has_ended(address: str) -> bool:
    """Whether the machine there is up and nobody listens, of an address that was answered a moment ago.

    Looks for a second at most.
    """
    place = parse_address(address)
    if place is None:  # one of gRPC's schemes, like unix:
        return False
    try:
        with contextlib.closing(socket.create_connection(place, _LOOK_S)):
            return False
    except ConnectionRefusedError:
        return True
    except OSError:  # it cannot be told from here
        return False
