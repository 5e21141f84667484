"""How many KV pages the target may have: its flags and its model, as the rule for all pools asks for them."""

from __future__ import annotations

from engine.memory import MemoryNeeds, PoolFlags, PoolUse, Room, choose_num_pages, workspace_bytes
from engine.pages import pages_for
from engine.target_model import TargetModel
from paceline.tree import MAX_NODES
from target_service.config import TargetConfig

CPU_POOL_BYTES = 512 << 20  # of all ranks


def pool_flags(config: TargetConfig) -> PoolFlags:
    return PoolFlags(config.page_size, config.max_total_tokens, config.mem_fraction_static)


def memory_needs(config: TargetConfig, model: TargetModel) -> MemoryNeeds:
    """Of one rank."""
    workspace = workspace_bytes(
        config.max_rows_per_step,
        vocab_size=model.config.vocab_size,
        hidden_size=model.config.hidden_size,
        inner_size=model.config.intermediate_size,
        itemsize=model.dtype.itemsize,
    )
    return MemoryNeeds(model.weight_bytes, model.cache_bytes_per_token, workspace)


def choose_pages(config: TargetConfig, room: Room, *, context_length: int, bytes_per_token: int) -> int:
    """room: of the rank that has the least. Raises ConfigError where the flags ask for too much or too little."""
    useful = config.max_running_requests * pages_for(context_length + MAX_NODES, config.page_size)
    use = PoolUse("request", useful, least_tokens=2 + MAX_NODES)
    return choose_num_pages(room, pool_flags(config), use, page_bytes=bytes_per_token * config.page_size)
