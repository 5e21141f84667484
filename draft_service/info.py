"""DraftInfo: what a draft is and what it fits to."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from pathlib import Path

from draft_service.config import DraftConfig
from draft_service.propose_times import ProposeTime
from engine.config import ModelConfig
from engine.head_model import HeadModel
from engine.weights import fingerprint


@dataclass(frozen=True, slots=True)
class DraftInfo:
    """Fixed for the life of the process."""

    incarnation: int  # random, fences off messages to an earlier process
    model_name: str
    model_fingerprint: str
    head_fingerprint: str
    tokenizer_fingerprint: str  # "" where the model comes without a tokenizer
    feature_id: str
    vocab_size: int  # the target's
    context_length: int
    feature_size: int
    dtype: str
    device: str
    page_size: int
    num_pages: int
    max_sessions: int
    eos_token_ids: tuple[int, ...]
    propose_times: tuple[ProposeTime, ...] = ()


def describe_draft(
    config: DraftConfig, model: HeadModel, target: ModelConfig, *, num_pages: int, context_length: int
) -> DraftInfo:
    """Reads the model's folder for its identity, and draws the incarnation."""
    model_path = Path(config.model_path)
    tokenizer = model_path / "tokenizer.json"
    return DraftInfo(
        incarnation=secrets.randbits(63) + 1,
        model_name=model_path.name,
        model_fingerprint=fingerprint(model_path),
        head_fingerprint=model.fingerprint,
        tokenizer_fingerprint=hashlib.sha256(tokenizer.read_bytes()).hexdigest() if tokenizer.is_file() else "",
        feature_id=model.feature_id,
        vocab_size=target.vocab_size,
        context_length=context_length,
        feature_size=model.config.hidden_size,
        dtype=config.dtype,
        device=config.device,
        page_size=config.page_size,
        num_pages=num_pages,
        max_sessions=config.max_running_requests,
        eos_token_ids=target.eos_token_ids,
    )
