"""How many KV pages the draft may have."""

from __future__ import annotations

from draft_service.config import DraftConfig
from engine.memory import check_pool_fits, pool_share
from engine.pages import pages_for
from paceline.errors import ConfigError
from paceline.types import MAX_SCRATCH_NODES

_CPU_POOL_BYTES = 128 << 20


def choose_num_pages(config: DraftConfig, *, context_length: int, bytes_per_token: int, weight_bytes: int) -> int:
    """Pages for --max-total-tokens, or what the sessions can use at most, bounded by the share of memory.

    Raises ConfigError where not even one session of two tokens fits, or where --max-total-tokens asks for more
    memory than there is.
    """
    page_bytes = bytes_per_token * config.page_size
    if config.max_total_tokens is not None:
        num_pages = pages_for(config.max_total_tokens, config.page_size)
        check_pool_fits(config.max_total_tokens, num_pages * page_bytes, device=config.device)
    else:
        useful = config.max_running_requests * pages_for(context_length + MAX_SCRATCH_NODES, config.page_size)
        share = pool_share(
            config.device,
            fraction=config.mem_fraction_static,
            weight_bytes=weight_bytes,
            cpu_limit=_CPU_POOL_BYTES,
        )
        num_pages = min(useful, share // page_bytes)
    least = pages_for(2 + MAX_SCRATCH_NODES, config.page_size)
    if num_pages < least:
        raise ConfigError(
            f"{max(num_pages, 0)} KV pages of {config.page_size} tokens do not hold one session, which takes {least}; "
            "raise --max-total-tokens or --mem-fraction-static"
        )
    return num_pages
