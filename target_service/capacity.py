"""How many KV pages the target may have."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.memory import check_pool_fits, pool_share
from engine.pages import pages_for
from paceline.errors import ConfigError
from paceline.tree import MAX_NODES
from target_service.config import TargetConfig

_CPU_POOL_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Of one rank."""

    weight_bytes: int
    bytes_per_token: int  # KV and feature


def choose_num_pages(config: TargetConfig, needs: MemoryNeeds, *, context_length: int) -> int:
    """Pages for --max-total-tokens, or what the requests can use at most, bounded by the share of memory.

    Raises ConfigError where not even one request of two tokens fits, or where --max-total-tokens asks for more
    memory than there is.
    """
    page_bytes = needs.bytes_per_token * config.page_size
    if config.max_total_tokens is not None:
        num_pages = pages_for(config.max_total_tokens, config.page_size)
        pool_bytes = num_pages * page_bytes
        check_pool_fits(config.max_total_tokens, pool_bytes, device=config.device, num_ranks=config.tp_size)
    else:
        useful = config.max_running_requests * pages_for(context_length + MAX_NODES, config.page_size)
        num_pages = min(useful, _share(config, needs) // page_bytes)
    least = pages_for(2 + MAX_NODES, config.page_size)
    if num_pages < least:
        raise ConfigError(
            f"{max(num_pages, 0)} KV pages of {config.page_size} tokens do not hold one request, which takes {least}; "
            "raise --max-total-tokens or --mem-fraction-static"
        )
    return num_pages


def _share(config: TargetConfig, needs: MemoryNeeds) -> int:
    """Bytes for one rank's pool; all ranks share a host."""
    share = pool_share(
        config.device,
        fraction=config.mem_fraction_static,
        weight_bytes=needs.weight_bytes,
        cpu_limit=_CPU_POOL_BYTES,
    )
    return share if torch.device(config.device).type == "cuda" else share // config.tp_size
