"""How many KV pages the draft may have: its flags and its head, as the rule for all pools asks for them."""

from __future__ import annotations

import torch

from draft_service.batcher import StepLimits
from draft_service.config import DraftConfig
from engine.device_drafter import MAX_BEAM_ROWS
from engine.head_model import HeadModel
from engine.memory import MemoryNeeds, PoolFlags, PoolUse, choose_num_pages, find_room, workspace_bytes
from engine.pages import pages_for
from paceline.types import MAX_SCRATCH_NODES

_CPU_POOL_BYTES = 128 << 20


def memory_needs(limits: StepLimits, model: HeadModel) -> MemoryNeeds:
    workspace = workspace_bytes(
        max(limits.max_rows, MAX_BEAM_ROWS),
        vocab_size=model.config.draft_vocab_size,
        hidden_size=model.config.hidden_size,
        inner_size=model.config.intermediate_size,
        itemsize=model.dtype.itemsize,
    )
    return MemoryNeeds(model.weight_bytes, model.cache_bytes_per_token, workspace)


def choose_pages(config: DraftConfig, needs: MemoryNeeds, *, device: torch.device, context_length: int) -> int:
    """Raises ConfigError where the flags ask for more memory than is free, or not even one session fits."""
    flags = PoolFlags(config.page_size, config.max_total_tokens, config.mem_fraction_static)
    useful = config.max_running_requests * pages_for(context_length + MAX_SCRATCH_NODES, config.page_size)
    use = PoolUse("session", useful, least_tokens=2 + MAX_SCRATCH_NODES)
    room = find_room(device, flags, needs, cpu_limit=_CPU_POOL_BYTES)
    return choose_num_pages(room, flags, use, page_bytes=needs.bytes_per_token * config.page_size)
