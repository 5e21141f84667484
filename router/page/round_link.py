"""Asks a target or a draft for its last round."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np

from paceline.errors import UnavailableError
from paceline.plumbing import Plumbing
from paceline.v1 import draft_pb2, draft_pb2_grpc, target_pb2, target_pb2_grpc, verify_pb2
from router.page.round_view import RoundColumns, check_columns

_TIMEOUT_S = 3.0
_STUBS: dict[str, Any] = {"target": target_pb2_grpc.TargetServiceStub, "draft": draft_pb2_grpc.DraftServiceStub}
_REQUESTS: dict[str, Any] = {
    "target": target_pb2.TargetServiceInspectRoundRequest,
    "draft": draft_pb2.DraftServiceInspectRoundRequest,
}


async def last_round(service: str, address: str, plumbing: Plumbing, *, brief: bool) -> RoundColumns:
    """Of a "target" or a "draft"; brief: without the KV's slots.

    Raises UnavailableError, and WireError for an answer that does not fit together.
    """
    async with plumbing.open_channel(address) as channel:
        try:
            request = _REQUESTS[service](brief=brief)
            reply = await _STUBS[service](channel).InspectRound(request, timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            why = await plumbing.explain(address, error, wanted=service)
            raise UnavailableError(f"{service} {address}: {why}") from error
    return check_columns(_columns(reply.round))


def _columns(view: verify_pb2.RoundView) -> RoundColumns:
    verify, output, extend = view.verify_input, view.verify_output, view.extend_input
    verified = view.HasField("verify_output")
    indptr = extend.kv_indptr
    return RoundColumns(
        step=view.step,
        time_unix_ms=view.time_unix_ms,
        timings_ms=dict(view.timings_ms),
        session=verify.session[:],
        round=verify.round[:],
        base_committed_len=verify.base_committed_len[:],
        num_tokens=np.asarray(verify.num_tokens_per_req, np.int64),
        tokens=verify.draft_token[:],
        parents=verify.parents[:],
        accept_length=np.asarray(output.accept_length, np.int64) if verified else None,
        accepted_indices=output.accepted_indices[:] if verified else None,
        verified_id=output.verified_id[:] if verified else None,
        kv_slots={session: extend.kv_indices[indptr[i] : indptr[i + 1]] for i, session in enumerate(extend.session)}
        if len(indptr) == len(extend.session) + 1
        else None,
    )
