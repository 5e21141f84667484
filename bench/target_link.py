"""TargetLink: what a target says of its last step."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Self

from client.errors import typed_errors_aio
from paceline.rpc import open_channel
from paceline.tls import TlsIdentity
from paceline.v1 import target_pb2, target_pb2_grpc

_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class StepSample:
    """One step as its target reports it. Times in milliseconds."""

    rows: int
    prefill_tokens: int
    requests: int  # that verified in it
    drafted: int  # of them with more than one node
    context_tokens: int
    step_ms: float
    wait_ms: float  # before it, for trees alone
    turnaround_ms: float = 0.0  # from the asks for its trees to the last of them; 0: none, or not known
    running: int = 0  # requests past their prompt, those that other steps hold included; 0: not known


class TargetLink:
    """Belongs to a running event loop. An async context manager: it owns a channel."""

    def __init__(self, address: str, tls: TlsIdentity | None) -> None:
        self.address = address
        self._tls = tls
        self._channel = open_channel(address, tls)
        self._stub = target_pb2_grpc.TargetServiceStub(self._channel)

    async def last_step(self) -> StepSample | None:
        """None where nothing stepped since the load changed. Raises a PacelineError."""
        async with typed_errors_aio(self.address, self._tls):
            reply = await self._stub.GetInfo(target_pb2.TargetServiceGetInfoRequest(), timeout=_TIMEOUT_S)
        load = reply.load
        if not load.rows:
            return None
        return StepSample(
            rows=load.rows,
            prefill_tokens=load.prefill_tokens,
            requests=load.verified_requests,
            drafted=load.drafted_requests,
            context_tokens=load.context_tokens,
            step_ms=load.step_ms,
            wait_ms=load.tree_wait_ms,
            turnaround_ms=load.tree_turnaround_ms,
            running=load.running_requests,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()
