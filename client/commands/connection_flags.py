"""Flags of every command that talks to a router."""

from __future__ import annotations

from dataclasses import dataclass

from client.client import PacelineClient
from client.credentials import Credentials
from paceline.config import flag
from paceline.tls_flags import TlsFlags

DEFAULT_ROUTER = "127.0.0.1:7100"


@dataclass(frozen=True)  # no slots: only one base of a class may have some
class ConnectionFlags(TlsFlags):
    """Where the router is, and who asks."""

    router: str = flag(DEFAULT_ROUTER, help="address of the router")
    api_key_file: str = flag("", help="file that holds the tenant's API key")

    def credentials(self) -> Credentials:
        """Raises ConfigError for a file that cannot be used."""
        return Credentials.from_files(self.tls_files(), api_key_file=self.api_key_file)

    def client(self) -> PacelineClient:
        """Raises ConfigError for a file that cannot be used."""
        return PacelineClient(self.router, credentials=self.credentials())
