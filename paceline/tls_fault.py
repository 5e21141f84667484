"""Why a TLS connection fails: gRPC often says "Socket closed" alone, a handshake of our own says more."""

from __future__ import annotations

import socket
import ssl

from paceline.address import HostPort, parse_address
from paceline.tls import TlsFiles, TlsIdentity

PROBE_TIMEOUT_S = 2.0
# gRPC's words for a connection that was refused by one of its ends, and did not fail to reach the other.
_SIGNS = ("handshake", "verification", "Verification", "Socket closed", "reset", "recvmsg", "Broken pipe")
_NEVER_REACHED = "tcp handshaker"  # gRPC's word for a connection attempt that nothing answered
_NO_TLS = ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")


def tls_fault(address: str, tls: TlsIdentity | None, details: str) -> str:
    """What is wrong between our certificates and those of a server that gRPC could not connect to; "": nothing is.

    details: gRPC's message. Asks the server where that leaves it open, which may take PROBE_TIMEOUT_S twice.
    """
    place = parse_address(address)
    if place is None or _NEVER_REACHED in details:  # None: one of gRPC's schemes, like unix:
        return ""
    if not any(sign in details for sign in _SIGNS):
        return ""
    if tls is None:
        return "it speaks TLS: give --tls-ca, and --tls-cert with --tls-key" if _speaks_tls(place) else ""
    return _fault(place, tls.files)


def _fault(place: HostPort, files: TlsFiles) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    try:
        context.load_verify_locations(files.ca)
        if files.cert:
            context.load_cert_chain(files.cert, files.key)
        admitted = _shake_hands(place, context, server_name=files.peer_name or place.host)
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is not good: {error.verify_message}; see its --tls-cert, our --tls-ca, --tls-peer-name"
    except ssl.SSLError as error:
        if any(word in (error.reason or "") for word in _NO_TLS):
            return "it speaks no TLS: start it with --tls-cert, --tls-key and --tls-ca, or leave ours out"
        return f"the TLS handshake with it fails: {error.reason or error}"
    except OSError:  # reaching it is gRPC's matter
        return ""
    if admitted:
        return ""
    if not files.cert:
        return "it lets nobody in without a certificate: give --tls-cert and --tls-key"
    return (
        f"it refuses our certificate {files.cert}: expired, or its --tls-ca does not hold the authority that signed it"
    )


def _speaks_tls(place: HostPort) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        _shake_hands(place, context, server_name="")
    except ssl.SSLError as error:
        return not any(word in (error.reason or "") for word in _NO_TLS)
    except OSError:
        return False
    return True


def _shake_hands(place: HostPort, context: ssl.SSLContext, *, server_name: str) -> bool:
    """Whether the server goes on: under TLS 1.3 its verdict on our certificate comes after the handshake, and gRPC's
    verdict is to close the connection, where it would else send its settings.
    """
    with (
        socket.create_connection(place, PROBE_TIMEOUT_S) as plain,
        context.wrap_socket(plain, server_hostname=server_name or None) as connection,
    ):
        try:
            return connection.recv(1) != b""
        except ConnectionResetError:
            return False
