"""What a target says of itself."""

from __future__ import annotations

import hashlib
import secrets
from contextlib import closing
from pathlib import Path

from engine.head_config import load_head_config
from engine.head_weights import open_head_weights
from engine.weights import fingerprint, fingerprint_of
from paceline import __version__
from paceline.v1.common_pb2 import ServiceInfo
from target_service.config import TargetConfig
from target_service.deadline import StepTimes
from target_service.loading import LoadedRank

__all__ = ["ServiceInfo", "add_step_times", "service_info"]


def service_info(config: TargetConfig, rank: LoadedRank) -> ServiceInfo:
    """Raises ConfigError for a context length that the model does not have."""
    model_path = Path(config.model_path)
    tokenizer = model_path / "tokenizer.json"
    head = config.speculative_draft_model_path
    model = rank.model
    return ServiceInfo(
        service="target",
        version=__version__,
        incarnation=secrets.randbits(64) or 1,
        model_name=model_path.name,
        model_fingerprint=fingerprint(model_path),
        head_fingerprint=_head_fingerprint(Path(head)) if head else "",
        tokenizer_fingerprint=hashlib.sha256(tokenizer.read_bytes()).hexdigest() if tokenizer.is_file() else "",
        feature_id=model.feature_id,
        vocab_size=model.config.vocab_size,
        context_length=model.config.context_length(config.context_length),
        feature_size=model.feature_size,
        dtype=config.dtype,
        device=config.device,
        tp_size=config.tp_size,
        page_size=config.page_size,
        num_pages=rank.cache.num_pages,
        max_running_requests=config.max_running_requests,
        eos_token_ids=model.config.eos_token_ids,
        overlaps_rounds=overlaps_rounds(config, rank),
    )


def overlaps_rounds(config: TargetConfig, rank: LoadedRank) -> bool:
    """Whether half of a round may be verified while the other half is drafted: on a device that computes on its own."""
    can_overlap = rank.model.device.type == "cuda" and rank.model.feature_size > 0
    return can_overlap and not config.disable_overlap_schedule


def add_step_times(info: ServiceInfo, times: StepTimes) -> None:
    """What the warm-up took, for the routers' cost models."""
    for rows, ms in times.warm_up:
        info.step_times.add(rows=rows, ms=ms)


def _head_fingerprint(path: Path) -> str:
    with closing(open_head_weights(path, load_head_config(path))) as source:
        return fingerprint_of(source)
