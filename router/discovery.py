"""Where a router finds its peers: fixed addresses, a DNS name that stands for many, a file that lists them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote

from paceline.address import PORTS, parse_address
from paceline.config import require
from paceline.errors import InvalidInputError

_FORMS = f"host:port, dns:///name:port or file:///path; {PORTS}"
_SEPARATORS = re.compile(r"[\s,]+")


@dataclass(frozen=True, slots=True)
class FixedAddress:
    """One peer that is always meant."""

    address: str


@dataclass(frozen=True, slots=True)
class DnsName:
    """A peer for each of the name's addresses, such as a headless Service's."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"dns:///{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ListFile:
    """A peer for each host:port in a file, one a line or comma-separated; # begins a comment."""

    path: Path

    def __str__(self) -> str:
        return f"file://{self.path}"


Source: TypeAlias = FixedAddress | DnsName | ListFile


def parse_sources(entries: Iterable[str], *, flag_name: str) -> tuple[Source, ...]:
    """The sources that a flag names. Raises ConfigError, naming the flag, for a bad or repeated entry."""
    entries = tuple(entries)
    require(len(set(entries)) == len(entries), flag_name, ",".join(entries), "free of repetitions")
    return tuple(_parse(entry, flag_name) for entry in entries)


def parse_list(text: str) -> tuple[str, ...]:
    """The addresses of a ListFile's text, each once. Raises InvalidInputError naming what is no address."""
    lines = (line.partition("#")[0] for line in text.splitlines())
    addresses = tuple(dict.fromkeys(part for line in lines for part in _SEPARATORS.split(line) if part))
    for address in addresses:
        if parse_address(address) is None:
            raise InvalidInputError(f"{address!r} is no address; write host:port")
    return addresses


def _parse(entry: str, flag_name: str) -> Source:
    scheme, mark, rest = entry.partition("://")
    if mark and scheme == "dns":
        name = parse_address(rest.removeprefix("/")) if rest.startswith("/") and "[" not in rest else None
        require(name is not None, flag_name, entry, _FORMS)
        assert name is not None
        return DnsName(*name)
    if mark and scheme == "file":
        require(len(rest) > 1 and rest.startswith("/"), flag_name, entry, _FORMS)
        return ListFile(Path(unquote(rest)))
    require(parse_address(entry) is not None, flag_name, entry, _FORMS)
    return FixedAddress(entry)
