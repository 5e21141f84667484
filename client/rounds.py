"""The rounds of a running service: the last one, or each from now on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from client.address import require_address
from client.errors import typed_errors_aio
from paceline.rpc import open_channel
from paceline.tls import TlsIdentity
from paceline.v1 import draft_pb2, draft_pb2_grpc, target_pb2, target_pb2_grpc, verify_pb2

_TIMEOUT_S = 5.0
_STUBS: dict[str, Any] = {"target": target_pb2_grpc.TargetServiceStub, "draft": draft_pb2_grpc.DraftServiceStub}
_INSPECT: dict[str, Any] = {
    "target": target_pb2.TargetServiceInspectRoundRequest,
    "draft": draft_pb2.DraftServiceInspectRoundRequest,
}
_WATCH: dict[str, Any] = {
    "target": target_pb2.TargetServiceWatchRoundsRequest,
    "draft": draft_pb2.DraftServiceWatchRoundsRequest,
}


@dataclass(frozen=True, slots=True)
class RoundSource:
    """A running target or draft. Raises InvalidInputError for an address that is none."""

    service: str  # "target" or "draft"
    address: str
    tls: TlsIdentity | None = None

    def __post_init__(self) -> None:
        require_address(self.address, f"the {self.service}'s address")

    async def last(self) -> verify_pb2.RoundView:
        """Without a step where there has been none. Raises a PacelineError."""
        async with open_channel(self.address, self.tls) as channel, typed_errors_aio(self.address, self.tls):
            request = _INSPECT[self.service]()
            reply = await _STUBS[self.service](channel).InspectRound(request, timeout=_TIMEOUT_S)
        return reply.round

    async def rounds(self) -> AsyncIterator[verify_pb2.RoundView]:
        """Until the service ends; rounds that the reader is too slow for are skipped. Raises a PacelineError."""
        async with open_channel(self.address, self.tls) as channel, typed_errors_aio(self.address, self.tls):
            async for reply in _STUBS[self.service](channel).WatchRounds(_WATCH[self.service]()):
                yield reply.round
