"""A call that went to the wrong service: which one is at the address, and where the right one listens."""

from __future__ import annotations

import grpc

from paceline.service_kind import is_unknown_call, service_kind
from paceline.tls import TlsIdentity

_PORTS = "unless told otherwise a router listens on 7100, a target on 7200, a draft on 7300; paceline info lists them"


def mistaken_service(error: grpc.RpcError, address: str, tls: TlsIdentity | None) -> str:
    """What the caller should know about the address, where it serves no such method; "" otherwise.

    Asks the health service there, which may take seconds.
    """
    if not is_unknown_call(error):
        return ""
    found = service_kind(address, tls)
    what = f"is a {found} service, which does not know this call" if found else "is no service of Paceline"
    return f"what answers at {address} {what}: name another address; {_PORTS}"
