"""What gRPC says of a connection that failed, in words that somebody can act on."""

from __future__ import annotations

import re

import grpc

from paceline.service_kind import LOST_STATUS

# Statuses that no connection ends with: they are a service's, whatever words it quotes.
_OF_SERVICES = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.DATA_LOSS,
)
_HTTP_STATUS = re.compile(r"^Received http2 header with status: (\d+)")  # of a proxy, or of a web server
_NO_PROCESS = "failed to connect"
_NO_GRPC = "what answers {at} speaks no gRPC: name a service's --port, not its metrics or live page"
_HANGS_UP = (
    "what listens {at} hangs up without a word: name a service's --port, not a draft's --round-port, or see whether "
    "what is behind it runs"
)
_NO_HOST = "the resolver finds no host {at}: see the spelling, and whether DNS works on this machine"
# gRPC's own words, and what they mean; the first that fits counts.
_FAULTS = (
    ("Failed parsing HTTP/2", _NO_GRPC),
    ("SETTINGS frame", "what listens {at} says nothing: see whether its process hangs"),
    ("errors resolving", _NO_HOST),
    ("DNS resolution failed", _NO_HOST),
    (_NO_PROCESS, "nothing answers {at}"),
    ("Method not found!", "what answers {at} does not know this call: it is of another kind, or of another version"),
    ("Deadline Exceeded", "what answers {at} took longer than allowed: see whether it hangs or has too much to do"),
    ("ping timeout", "the connection{to} was given up, for pings went unanswered: see whether the process there hangs"),
)
_BROKE = "the connection{to} broke: see whether the process there still runs"
_LOST = ("Socket closed", "Stream removed", "Connection reset", "recvmsg")
_BROKEN = (*_LOST, "GOAWAY", "Cancelling all calls", LOST_STATUS)
# gRPC begins with its own words, a service that passes them on does not.
_OPENINGS = (*(sign for sign, _ in _FAULTS), *_BROKEN)


def link_fault(code: grpc.StatusCode, details: str, address: str = "") -> str:
    """Who is at fault and what to do; "" where code and details, a failed call's, are not gRPC's own on a connection.

    address: the other end's, for a message that does not name it otherwise.
    """
    if code in _OF_SERVICES:
        return ""
    names = {"at": f"at {address}" if address else "there", "to": f" to {address}" if address else ""}
    if status := _HTTP_STATUS.search(details):
        where = "name a service's --port, or see to the proxy before it"
        return f"what answers {names['at']} speaks no gRPC, but HTTP (status {status[1]}): {where}"
    if not details.startswith(_OPENINGS):
        return ""
    if details.startswith(_NO_PROCESS) and any(sign in details for sign in _LOST):
        return _HANGS_UP.format(**names)
    for sign, words in _FAULTS:
        if sign in details:
            return words.format(**names)
    return _BROKE.format(**names)


def is_hang(fault: str) -> bool:
    """Whether link_fault's words are of a process that is there and says nothing."""
    return "hangs" in fault and "hangs up" not in fault


def connection_broke(address: str) -> str:
    """What link_fault says where it ended in the midst of a call."""
    return link_fault(grpc.StatusCode.UNAVAILABLE, _LOST[0], address)


def nothing_answers(address: str = "") -> str:
    """What link_fault says where no process took the connection."""
    return link_fault(grpc.StatusCode.UNAVAILABLE, _NO_PROCESS, address)
