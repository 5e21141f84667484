"""The flags of TLS, which services and clients spell the same."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.config import flag
from paceline.tls import TlsFiles


@dataclass(frozen=True)  # no slots: only one base of a class may have some
class TlsFlags:
    """Unset: plaintext. Files are read again when they change."""

    tls_cert: str = flag("", help="PEM file of the own certificate chain; this and the next two are watched")
    tls_key: str = flag("", help="PEM file of the certificate's key")
    tls_ca: str = flag("", help="PEM file of the certificates that peers are checked against")
    tls_peer_name: str = flag("", help="name that peers' certificates must carry; unset: the host of their address")

    def tls_files(self, *, verify_clients: bool = True) -> TlsFiles | None:
        """None: plaintext. Raises ConfigError for flags that do not make a whole."""
        if not (self.tls_cert or self.tls_key or self.tls_ca):
            return None
        return TlsFiles(
            self.tls_cert, self.tls_key, self.tls_ca, peer_name=self.tls_peer_name, verify_clients=verify_clients
        )
