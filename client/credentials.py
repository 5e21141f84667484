"""Who a client is, and whom it trusts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from client.fit import require_fit
from paceline.errors import ConfigError, InvalidInputError
from paceline.tls import TlsFiles


@dataclass(frozen=True, slots=True)
class Credentials:
    """tls: certificates to speak TLS with, read again whenever they change; None: plaintext. api_key: the tenant's."""

    tls: TlsFiles | None = None
    api_key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Raises InvalidInputError, without the key in it."""
        require_fit(
            self.tls is None or isinstance(self.tls, TlsFiles), "tls", self.tls, "a paceline.tls.TlsFiles or None"
        )
        fits = isinstance(self.api_key, str) and self.api_key.isascii() and self.api_key.isprintable()
        if not fits:
            raise InvalidInputError("api_key does not fit a header; it must be a str of printable ASCII, one line")

    @classmethod
    def from_files(cls, tls: TlsFiles | None, *, api_key_file: str = "") -> Self:
        """Raises ConfigError for a key file that cannot be read, is empty, or holds what no header may."""
        if not api_key_file:
            return cls(tls)
        try:
            key = Path(api_key_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--api-key-file {api_key_file} cannot be read: {error}") from error
        if not key or not key.isascii() or not key.isprintable():
            raise ConfigError(f"--api-key-file {api_key_file} must hold one key, a line of printable ASCII")
        return cls(tls, key)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What every call carries."""
        return (("authorization", f"Bearer {self.api_key}"),) if self.api_key else ()
