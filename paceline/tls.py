"""Certificates of a service or a client: read from files, checked, and read again when the files change."""

from __future__ import annotations

import logging
import os
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path

import grpc

from paceline.errors import ConfigError

_log = logging.getLogger(__name__)
_EXPIRED, _NOT_YET_VALID = 10, 9  # OpenSSL's X509_V_ERR_* codes
_READ_TRIES = 5  # of files that change while they are read


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files. Raises ConfigError, naming the flags, for a set that is not whole.

    cert and key: the own chain, leaf first, and its key; both empty for a client without a certificate. ca: what
    peers' certificates are checked against. peer_name: the name that they must carry; empty: the address's host.
    """

    cert: str
    key: str
    ca: str
    peer_name: str = ""
    verify_clients: bool = True  # of a server: refuse clients that show no certificate of the ca

    def __post_init__(self) -> None:
        if bool(self.cert) != bool(self.key):
            raise ConfigError("--tls-cert and --tls-key come together: give both or none")
        if not self.ca:
            raise ConfigError("--tls-ca is unset; TLS needs the certificates that peers are checked against")

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(path for path in (self.cert, self.key, self.ca) if path)


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """What the files held at one time. cert and key: None where the files name none."""

    cert: bytes | None
    key: bytes | None
    ca: bytes
    not_after_s: float | None  # of the own certificate, Unix time; None: there is none, or the ca does not verify it


class TlsIdentity:
    """The files' newest valid content. Safe to use from any thread.

    Files that changed are read at the next use: each handshake of a server, each new channel of a client. A set that
    does not fit together is logged once, and the last good one stays. Making one raises ConfigError.
    """

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self._lock = threading.Lock()
        self._stamp, self._material = _read(files)
        self._refused: _Stamp | None = None  # the last state of the files that was no good

    def current(self) -> TlsMaterial:
        """Costs three stat calls while nothing changes."""
        with self._lock:
            stamp = _stamp(self.files)
            if stamp not in (self._stamp, self._refused):
                self._refused = stamp
                try:
                    self._stamp, self._material = _read(self.files)
                except ConfigError as error:
                    _log.warning("new certificates are not used: %s; the old ones stay", error)
                else:
                    _log.info("certificates were read again from %s", ", ".join(self.files.paths))
            return self._material

    def server_credentials(self) -> grpc.ServerCredentials:
        """For a port whose handshakes each use the newest files."""
        used = self.current()
        lock = threading.Lock()

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal used
            with lock:
                material = self.current()
                if material is used:
                    return None
                used = material
            return _server_configuration(material)

        return grpc.dynamic_ssl_server_credentials(
            _server_configuration(used),
            fetch,  # type: ignore[arg-type] # None is allowed: nothing has changed
            require_client_authentication=self.files.verify_clients,
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Of the files now; a channel keeps them, so a new connection wants a new channel once they have changed."""
        material = self.current()
        return grpc.ssl_channel_credentials(material.ca, material.key, material.cert)


_Stamp = tuple[tuple[int, int, int], ...]


def _server_configuration(material: TlsMaterial) -> grpc.ServerCertificateConfiguration:
    assert material.cert is not None and material.key is not None, "a server without a certificate"
    return grpc.ssl_server_certificate_configuration([(material.key, material.cert)], material.ca)


def _stamp(files: TlsFiles) -> _Stamp:
    """Another one whenever a file is another."""
    return tuple(_file_stamp(path) for path in files.paths)


def _file_stamp(path: str) -> tuple[int, int, int]:
    try:
        stat = os.stat(path)
    except OSError:  # reading it says why
        return (0, 0, 0)
    return (stat.st_ino, stat.st_mtime_ns, stat.st_size)


def _read(files: TlsFiles) -> tuple[_Stamp, TlsMaterial]:
    """One consistent state of the files, checked. Raises ConfigError."""
    for _ in range(_READ_TRIES):
        before = _stamp(files)
        try:
            material = _read_once(files)
        except ConfigError:
            if _stamp(files) == before:
                raise
            continue
        if _stamp(files) == before:
            return before, material
    raise ConfigError(f"{', '.join(files.paths)} keep changing; write new certificates at once, by a rename")


def _read_once(files: TlsFiles) -> TlsMaterial:
    try:
        ca = Path(files.ca).read_bytes()
        cert = Path(files.cert).read_bytes() if files.cert else None
        key = Path(files.key).read_bytes() if files.key else None
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}; see the --tls-* flags") from error
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    try:
        client.load_verify_locations(files.ca)
    except ssl.SSLError as error:
        raise ConfigError(f"--tls-ca {files.ca} holds no certificates in PEM form: {error.reason or error}") from error
    not_after_s = _verify_own(files, client) if files.cert else None
    return TlsMaterial(cert, key, ca, not_after_s)


def _verify_own(files: TlsFiles, client: ssl.SSLContext) -> float | None:
    """When the own certificate ends, by a handshake in memory with a peer that has the same ca.

    Raises ConfigError for one that is no certificate, fits no key or is out of date. One that the ca does not
    verify may still be fine elsewhere: that is logged.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        server.load_cert_chain(files.cert, files.key, password=_refuse_password)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise ConfigError(
            f"--tls-cert {files.cert} and --tls-key {files.key} are no pair in PEM form: {reason}"
        ) from error
    try:
        return _handshake(client, server)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in (_EXPIRED, _NOT_YET_VALID):
            raise ConfigError(f"--tls-cert {files.cert}: {error.verify_message}; renew it") from error
        _log.warning(
            "--tls-cert %s does not verify against --tls-ca %s (%s): peers with the same --tls-ca will refuse it",
            files.cert,
            files.ca,
            error.verify_message,
        )
        return None


def _handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> float:
    """The end of the server's certificate, Unix time. Raises SSLCertVerificationError where the client refuses it."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(ends)
    while waiting:
        for end in list(waiting):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(end)
    certificate = ends[0].getpeercert()
    assert certificate is not None
    return ssl.cert_time_to_seconds(str(certificate["notAfter"]))


def _refuse_password() -> str:
    raise ValueError("the key is encrypted, and there is nobody to ask for its password")
