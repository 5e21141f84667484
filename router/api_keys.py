"""API keys: who a caller is, from a watched file of hashed keys."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import logging
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from paceline.errors import AccessError, ConfigError, ForbiddenError
from router.request import MAX_TENANT_LEN, Terms

_log = logging.getLogger(__name__)
_SCHEME = "bearer "
_ALGORITHM = "sha256:"
_LOOK_S = 1.0  # between looks at the file


class ApiKeys:
    """The keys of a file with a line ``TENANT sha256:HEX`` for each, empty lines and # comments aside.

    The file is read again when it changes; one that does not parse is logged, and the keys before it stay. Neither
    keys nor hashes are ever logged. Making one raises ConfigError.

    A key is found by a hash keyed with a secret of this process: how long that takes tells a caller nothing about the
    keys in the file.
    """

    def __init__(self, path: str, *, clock: Callable[[], float]) -> None:
        self._path = Path(path)
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._stamp = _stamp(self._path)
        self._tenants = self._read()
        self._looked_at = clock()

    def tenant_of(self, authorization: str | None) -> str:
        """Whose key the metadata ``authorization: Bearer KEY`` carries. Raises AccessError for none and a wrong one."""
        self._look()
        if authorization is None:
            raise AccessError("no API key: send the metadata 'authorization: Bearer KEY' (paceline: --api-key-file)")
        scheme, key = authorization[: len(_SCHEME)], authorization[len(_SCHEME) :].strip()
        if scheme.lower() != _SCHEME or not key:
            raise AccessError("the metadata 'authorization' is not of the form 'Bearer KEY'")
        found = self._tenants.get(self._veil(hashlib.sha256(key.encode()).digest()))
        if found is None:
            raise AccessError("this API key is not known here: ask the operator for one of this deployment")
        return found

    def _veil(self, digest: bytes) -> bytes:
        return hmac.digest(self._secret, digest, "sha256")

    def _look(self) -> None:
        now = self._clock()
        if now - self._looked_at < _LOOK_S:
            return
        self._looked_at = now
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._tenants = self._read()
        except ConfigError as error:
            _log.warning("the new API keys are not used: %s; the old ones stay", error)
        else:
            _log.info("%d API keys were read from %s", len(self._tenants), self._path)

    def _read(self) -> dict[bytes, str]:
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--api-keys {self._path} cannot be read: {error}") from error
        tenants: dict[bytes, str] = {}
        for number, line in enumerate(lines, start=1):
            if line.strip() and not line.lstrip().startswith("#"):
                tenant, digest = _entry(line, f"--api-keys {self._path}, line {number}")
                veiled = self._veil(digest)
                if veiled in tenants:
                    raise ConfigError(f"--api-keys {self._path}, line {number}: the same key stands above")
                tenants[veiled] = tenant
        return tenants


def as_caller(terms: Terms, tenant: str) -> Terms:
    """The terms with the key's tenant. Raises ForbiddenError where the request names another."""
    if terms.tenant not in ("", tenant):
        raise ForbiddenError(f"the API key is not tenant {terms.tenant!r}'s: leave tenant out, or use its own key")
    return dataclasses.replace(terms, tenant=tenant)


def _entry(line: str, where: str) -> tuple[str, bytes]:
    """Tenant and digest. The message never holds the line: a key may stand there by mistake."""
    tenant, _, digest = line.strip().rpartition(" ")
    tenant, digest = tenant.strip(), digest.lower()
    if not 0 < len(tenant) <= MAX_TENANT_LEN or not digest.startswith(_ALGORITHM):
        raise ConfigError(f"{where}: not of the form 'TENANT sha256:HEX'; paceline api-key TENANT makes one")
    try:
        raw = bytes.fromhex(digest.removeprefix(_ALGORITHM))
    except ValueError:
        raw = b""
    if len(raw) != hashlib.sha256().digest_size:
        raise ConfigError(f"{where}: the hash is not 64 hexadecimal digits; paceline api-key TENANT makes one")
    return tenant, raw


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        stat = os.stat(path)
    except OSError:  # reading it says why
        return (0, 0, 0)
    return (stat.st_ino, stat.st_mtime_ns, stat.st_size)
