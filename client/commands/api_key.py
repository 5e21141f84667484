"""``paceline api-key``: a new key of a tenant, and the line that makes it known to a router."""

from __future__ import annotations

import hashlib
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from client.commands.command import Command, parse_words
from paceline.errors import ConfigError

_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class ApiKeyConfig:
    """Make an API key for a tenant: the key on stdout, its line for the router's --api-keys file on stderr."""

    tenant: tuple[str, ...] = ()


def main(argv: Sequence[str]) -> int:
    config = parse_words(ApiKeyConfig, argv, command="api-key", words="tenant")
    name = config.tenant[0].strip() if len(config.tenant) == 1 else ""
    if not name or not name.isprintable() or name.startswith("#"):
        raise ConfigError(
            "name one tenant, on one line, without a # in front: paceline api-key TENANT >a.key 2>>keys.txt"
        )
    key = "pl_" + secrets.token_urlsafe(_KEY_BYTES)
    print(key)
    print(f"{name} sha256:{hashlib.sha256(key.encode()).hexdigest()}", file=sys.stderr)
    return 0


COMMAND = Command("api-key", "make an API key for a tenant", main)
