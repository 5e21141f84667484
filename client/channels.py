"""Channels: a client's connection, made anew once its certificates have changed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from client.address import require_address
from client.credentials import Credentials
from client.fit import is_duration, require_fit
from paceline.errors import InvalidInputError
from paceline.tls import TlsIdentity
from paceline.v1 import router_pb2_grpc


class _Closable(Protocol):
    def close(self) -> Any: ...


ChannelT = TypeVar("ChannelT", bound=_Closable)


@dataclass(frozen=True, slots=True)
class Asking:
    """How a client calls: whom, with which certificates and metadata, for how long at most."""

    address: str
    tls: TlsIdentity | None
    metadata: tuple[tuple[str, str], ...]
    timeout_s: float | None

    @classmethod
    def by(cls, credentials: Credentials, address: str, timeout_s: float | None) -> Asking:
        """Raises InvalidInputError for an argument that does not fit, ConfigError for certificates of no use."""
        require_address(address, "the router's address")
        fits = timeout_s is None or is_duration(timeout_s)
        require_fit(fits, "request_timeout_s", timeout_s, "seconds, above 0, or None")
        require_fit(isinstance(credentials, Credentials), "credentials", credentials, "a client.Credentials")
        tls = None if credentials.tls is None else TlsIdentity(credentials.tls)
        return cls(address, tls, credentials.metadata, timeout_s)


class Opened(Generic[ChannelT]):
    """A channel and the router's stub on it. Hold it as long as a call on it runs: one that nobody holds may close."""

    def __init__(self, channel: ChannelT) -> None:
        self.channel = channel
        self.stub: Any = router_pb2_grpc.RouterServiceStub(channel)  # type: ignore[call-overload]


class Channels(Generic[ChannelT]):
    """Owns the channels to one address. ``take`` for each call; the owner closes those of ``end``.

    A channel keeps its certificates, and gRPC connects anew with them after a loss: so the first call after they
    changed gets another channel, while calls that run go on.
    """

    def __init__(self, asking: Asking, open: Callable[[str, TlsIdentity | None], ChannelT]) -> None:
        self._address = asking.address
        self._identity = asking.tls
        self._open = open
        self._is_over = False
        self._material = None if asking.tls is None else asking.tls.current()
        self._newest = Opened(open(asking.address, asking.tls))
        self._opened: weakref.WeakSet[Opened[ChannelT]] = weakref.WeakSet((self._newest,))

    def take(self) -> Opened[ChannelT]:
        """For a call that begins now. Raises InvalidInputError after the end."""
        if self._is_over:
            raise InvalidInputError(f"the client of {self._address} was closed; make a new one, or close it later")
        material = None if self._identity is None else self._identity.current()
        if material is not self._material:
            self._material = material
            self._newest = Opened(self._open(self._address, self._identity))
            self._opened.add(self._newest)
        return self._newest

    def end(self) -> list[ChannelT]:
        """The newest, and those that calls still hold. From now on none is taken; again is fine."""
        self._is_over = True
        return [opened.channel for opened in self._opened]
