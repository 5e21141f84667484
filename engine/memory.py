"""Whether a pool of a size that somebody chose fits the machine."""

from __future__ import annotations

import psutil
import torch

from paceline.errors import ConfigError


def check_pool_fits(max_total_tokens: int, pool_bytes: int, *, device: str, num_ranks: int = 1) -> None:
    """pool_bytes: of one rank; all ranks share a host. Raises ConfigError where more is asked for than is available."""
    at = torch.device(device)
    if at.type == "cuda":
        available, _ = torch.cuda.mem_get_info(at)
    else:
        available = psutil.virtual_memory().available // num_ranks
    if pool_bytes > available:
        raise ConfigError(
            f"--max-total-tokens {max_total_tokens} takes {pool_bytes / 2**30:.1f} GiB a rank and "
            f"{available / 2**30:.1f} GiB are available; lower it"
        )
