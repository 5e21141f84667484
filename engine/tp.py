"""TpGroup: the ranks that share one model, over torch.distributed."""

from __future__ import annotations

import math
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from engine.model_config import ModelConfig
from paceline.errors import ConfigError, UnavailableError

# A follower waits for rank 0's next plan while the service idles, so a wait is no fault; a dead peer closes its
# sockets and fails the wait at once. Gloo counts milliseconds in 31 bits.
_IDLE_LIMIT = timedelta(days=7)


class TpGroup:
    """size ranks; every rank makes the same calls in the same order. With size 1 all of them do nothing.

    A lost peer raises RuntimeError from torch.distributed; the group is then of no further use.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        """For size > 1 use ``init_tp_group``, which also connects the ranks."""
        self.rank = rank
        self.size = size

    def all_reduce(self, x: Tensor) -> Tensor:
        """MUTATES x to the sum over the ranks, the same bits on each; returns x."""
        if self.size > 1:
            dist.all_reduce(x)
        return x

    def gather_last_dim(self, x: Tensor, total: int) -> Tensor | None:
        """x [rows, part], the rank's ``shard`` of total columns -> [rows, total] on rank 0, None elsewhere."""
        if self.size == 1:
            return x
        widest = -(-total // self.size)
        padded = torch.nn.functional.pad(x, (0, widest - x.shape[-1]))
        if self.rank > 0:
            dist.gather(padded)
            return None
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.gather(padded, parts)
        widths = [stop - start for start, stop in (shard(total, rank, self.size) for rank in range(self.size))]
        return torch.cat([part[..., :width] for part, width in zip(parts, widths, strict=True)], dim=-1)

    def broadcast_plan(self, packed: np.ndarray | None = None) -> np.ndarray:
        """Rank 0's int64 array, on every rank. Rank 0 passes it, the others None; an empty one may mean stop."""
        if self.size == 1:
            assert packed is not None
            return packed
        length = torch.tensor([0 if packed is None else len(packed)])
        dist.broadcast(length, src=0)
        data = torch.empty(int(length), dtype=torch.int64) if packed is None else torch.from_numpy(packed)
        if len(data):
            dist.broadcast(data, src=0)
        array: np.ndarray = data.numpy()
        return array

    def close(self) -> None:
        """Leaves the group; a second call does nothing."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()


def init_tp_group(
    rank: int, size: int, *, init_method: str, backend: str = "gloo", start_limit_s: float = 300.0
) -> TpGroup:
    """Connects this process as one rank. init_method: torch's, such as tcp://127.0.0.1:29500, the same on every rank.

    Blocks until all ranks came; raises UnavailableError where they did not within start_limit_s.
    """
    if size > 1:
        try:
            store, _, _ = next(rendezvous(init_method, rank, size, timeout=timedelta(seconds=start_limit_s)))
        except (dist.DistNetworkError, dist.DistStoreError) as error:
            raise UnavailableError(
                f"rank {rank} of {size} did not meet the others at {init_method} within {start_limit_s:g} s: "
                f"start all {size} ranks with this address, and choose a port that is free"
            ) from error
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_IDLE_LIMIT)
    return TpGroup(rank, size)


def shard(total: int, rank: int, size: int) -> tuple[int, int]:
    """[start, stop) of a rank; the widths differ by at most one."""
    return total * rank // size, total * (rank + 1) // size


def validate_tp(config: ModelConfig, size: int) -> None:
    """Raises ConfigError unless every rank gets whole heads with their KV heads."""
    shared = math.gcd(config.num_heads, config.num_kv_heads)
    if size < 1 or shared % size:
        possible = ", ".join(str(n) for n in range(1, shared + 1) if shared % n == 0)
        raise ConfigError(
            f"tp size {size} does not divide {config.num_heads} heads and {config.num_kv_heads} KV heads; "
            f"choose one of {possible}"
        )
