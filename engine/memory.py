"""What memory a pool may take, and whether one of a size that somebody chose fits the machine."""

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


def pool_share(device: str, *, fraction: float, weight_bytes: int, cpu_limit: int) -> int:
    """Bytes for pools once the weights are loaded: of a GPU its own share, of a host at most cpu_limit for all ranks.

    A host's memory belongs to the other services, too, and a pool is touched whole when it is zeroed.
    """
    at = torch.device(device)
    if at.type == "cuda":
        return int(fraction * torch.cuda.get_device_properties(at).total_memory) - weight_bytes
    return min(int(fraction * psutil.virtual_memory().available), cpu_limit)
