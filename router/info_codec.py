"""The router's own GetInfo: itself, its fleet, and why a replica is not in use."""

from __future__ import annotations

from pathlib import Path

from paceline import __version__
from paceline.v1 import common_pb2, router_pb2
from router.config import RouterConfig
from router.dispatcher import Dispatcher
from router.draft_link import DraftLink
from router.target_link import TargetLink


def encode_router_info(
    dispatcher: Dispatcher, config: RouterConfig, *, tokenizer_fingerprint: str
) -> router_pb2.RouterServiceGetInfoResponse:
    """Model, head and limits are those of a connected target, unset while there is none."""
    fleet = dispatcher.fleet
    limits = fleet.limits()
    up = next((link.info_message for link in fleet.targets if link.info is not None), common_pb2.ServiceInfo())
    info = common_pb2.ServiceInfo(
        service="router",
        version=__version__,
        incarnation=dispatcher.incarnation,
        model_name=up.model_name or Path(config.model_path).name,
        model_fingerprint=up.model_fingerprint,
        head_fingerprint=up.head_fingerprint,
        tokenizer_fingerprint=tokenizer_fingerprint,
        feature_id=up.feature_id,
        vocab_size=limits.vocab_size,
        context_length=limits.context_length,
        max_running_requests=sum(link.info.max_running_requests for link in fleet.targets if link.info is not None),
        eos_token_ids=up.eos_token_ids,
    )
    return router_pb2.RouterServiceGetInfoResponse(
        info=info,
        targets=[_target_state(link) for link in fleet.targets],
        drafts=[
            _draft_state(link, mismatch=fleet.draft_mismatch(link), running=fleet.requests_by_draft[link.address])
            for link in fleet.drafts
        ],
        queued_requests=len(dispatcher.queue),
        max_queued_requests=dispatcher.queue.max_len,
        speculative_policy=config.policy().kind.value,
        draining=dispatcher.is_draining,
    )


def _target_state(link: TargetLink) -> router_pb2.ReplicaState:
    return router_pb2.ReplicaState(
        address=link.address,
        ready=link.ready,
        info=link.info_message,
        running_requests=link.num_flights,
        message=link.why_not_ready,
        unchanged_s=link.readiness.unchanged_s,
    )


def _draft_state(link: DraftLink, *, mismatch: str, running: int) -> router_pb2.ReplicaState:
    return router_pb2.ReplicaState(
        address=link.address,
        ready=link.ready and not mismatch,
        info=link.info_message,
        running_requests=running,
        message=link.message or mismatch or ("draining" if link.load.draining else ""),
        unchanged_s=link.readiness.unchanged_s,
    )
