"""TpGroup: the ranks that share one model, over torch.distributed and, for plans, shared memory."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol, cast
from urllib.parse import urlsplit

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from engine.all_reduce import OneShotSum, one_shot_sum
from engine.model_config import ModelConfig
from engine.plan_ring import PlanRing
from engine.plan_socket import PlanReceiver, PlanSender
from paceline.errors import ConfigError, UnavailableError

# The longest waits are those at the start, for a rank that still reads its weights or compiles its kernels.
_PEER_LIMIT = timedelta(minutes=30)
# A GPU's host threads outnumber its ranks, and its steps follow each other within milliseconds.
_CUDA_SPIN_S = 0.02
_CPU = torch.device("cpu")
_JOIN_LIMIT_S = 60.0  # of ranks that have met already


class _PlanWriter(Protocol):
    def write(self, array: np.ndarray) -> None: ...


class _PlanReader(Protocol):
    def read(self) -> np.ndarray: ...


@dataclass(frozen=True, slots=True)
class Meeting:
    """How the ranks come together. on_lost: called on rank 0, by a thread, once a rank is gone; on one host never."""

    num_hosts: int = 1
    start_limit_s: float = 300.0
    on_lost: Callable[[], None] = lambda: None


_MEETING = Meeting()


class TpGroup:
    """size ranks; every rank makes the same calls in the same order. With size 1 all do nothing.

    On the CPU a lost peer raises RuntimeError from torch.distributed, and the group is then of no further use. On
    GPUs, and in a wait for a plan of the own host, nothing notices it: whoever started the ranks watches them and ends
    them.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        *,
        plans: _PlanWriter | _PlanReader | None = None,
        one_shot: OneShotSum | None = None,
    ) -> None:
        """For size > 1 use ``init_tp_group``, which also connects the ranks."""
        self.rank = rank
        self.size = size
        self._plans = plans
        self._one_shot = one_shot

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over the ranks, the same bits on each. x: contiguous; MAY MUTATE it, so use what it returns.

        On GPUs it can be captured in a CUDA graph.
        """
        if self.size == 1:
            return x
        if self._one_shot is not None and self._one_shot.takes(x):
            return self._one_shot.sum(x)
        dist.all_reduce(x)
        return x

    def share_tokens(self, tokens: Tensor | None, count: int, *, device: torch.device) -> Tensor:
        """The first count of rank 0's tokens, and perhaps more, on every rank. Rank 0 passes them, the others None."""
        if self.size == 1:
            assert tokens is not None
            return tokens
        # Exact in fp32, which the ranks' fastest sum takes by 16 bytes; all ranks but rank 0 add nothing.
        shared = torch.zeros(-(-count // 4) * 4, dtype=torch.float32, device=device)
        if self.rank == 0:
            assert tokens is not None
            shared[:count] = tokens[:count]
        return self.all_reduce(shared).int()

    def gather_last_dim(self, x: Tensor, total: int) -> Tensor | None:
        """x [rows, part], the rank's ``shard`` of total columns -> [rows, total] on rank 0, None elsewhere.

        On GPUs it can be captured in a CUDA graph.
        """
        if self.size == 1:
            return x
        missing = -(-total // self.size) - x.shape[-1]
        padded = torch.nn.functional.pad(x, (0, missing)) if missing else x.contiguous()
        parts = padded.new_empty(self.size, *padded.shape)
        dist.all_gather_into_tensor(parts.view(-1, *padded.shape[1:]), padded)
        if self.rank > 0:
            return None
        widths = [stop - start for start, stop in (shard(total, rank, self.size) for rank in range(self.size))]
        return torch.cat([part[..., :width] for part, width in zip(parts, widths, strict=True)], dim=-1)

    def broadcast_plan(self, packed: np.ndarray | None = None) -> np.ndarray:
        """Rank 0's int64 array, on every rank. Rank 0 passes it, the others None; an empty one may mean stop."""
        if self._plans is None:
            assert packed is not None
            return packed
        if packed is None:
            return cast("_PlanReader", self._plans).read()
        cast("_PlanWriter", self._plans).write(packed)
        return packed

    def least(self, values: np.ndarray) -> np.ndarray:
        """The smallest of the ranks' values, each for itself. values: int64, as many on every rank; on the host."""
        if self.size == 1:
            return values
        smallest = torch.from_numpy(values.copy())
        dist.all_reduce(smallest, dist.ReduceOp.MIN)
        array: np.ndarray = smallest.numpy()
        return array

    def close(self) -> None:
        """Leaves a group on the CPU; a second call does nothing.

        On GPUs a rank's process leaves by ending: NCCL's own farewell waits for every captured graph that it is in.
        """
        if self.size > 1 and dist.is_initialized() and dist.get_backend() == "gloo":
            dist.destroy_process_group()


def init_tp_group(
    rank: int, size: int, *, init_method: str, device: torch.device = _CPU, meeting: Meeting = _MEETING
) -> TpGroup:
    """Connects this process as one rank. init_method: torch's, such as tcp://127.0.0.1:29500, the same on every rank.

    device: the rank's own; on a GPU it becomes the current one. With several hosts init_method is of tcp and names
    rank 0's. Blocks until all ranks came; raises UnavailableError where they did not within the meeting's limit, or
    where the host has no shared memory for the plans.
    """
    if size == 1:
        return TpGroup()
    limit_s = meeting.start_limit_s
    is_cuda = device.type == "cuda"
    if is_cuda:
        # Multicast over NVLink is of no use to messages of a step's size and can put a host's GPUs out of service.
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
        os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
        torch.cuda.set_device(device)
    try:
        store, _, _ = next(rendezvous(init_method, rank, size, timeout=timedelta(seconds=limit_s)))
    except (dist.DistNetworkError, dist.DistStoreError) as error:
        raise UnavailableError(
            f"rank {rank} of {size} did not meet the others at {init_method} within {limit_s:g} s: "
            f"start all {size} ranks with this address, and choose a port that is free"
        ) from error
    backend = "cpu:gloo,cuda:nccl" if is_cuda else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_PEER_LIMIT)
    if is_cuda:
        dist.all_reduce(torch.zeros(1, device=device))  # NCCL connects at the first call, which no graph may hold
    if meeting.num_hosts > 1:
        host = urlsplit(init_method).hostname or ""
        sockets = _join_sockets(store, rank, size, host=host, on_lost=meeting.on_lost)
        return TpGroup(
            rank, size, plans=sockets
        )  # the one-shot sum reads the peers' memory, which another host has not
    plans = _join_plans(store, rank, size, spin_s=_CUDA_SPIN_S if is_cuda else 0.0)
    return TpGroup(rank, size, plans=plans, one_shot=one_shot_sum(device) if is_cuda else None)


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


def _join_plans(store: dist.Store, rank: int, size: int, *, spin_s: float) -> PlanRing:
    """Rank 0 makes the ring; once all have attached, its name is gone and the memory goes with the processes."""
    if rank > 0:
        ring = PlanRing(Path(store.get("plans").decode()), reader=rank - 1, spin_s=spin_s)
        _meet()
        return ring
    ring = PlanRing.create(size - 1)
    try:
        store.set("plans", str(ring.path))
        _meet()
    finally:
        ring.unlink()
    return ring


def _join_sockets(
    store: dist.Store, rank: int, size: int, *, host: str, on_lost: Callable[[], None]
) -> PlanSender | PlanReceiver:
    """Rank 0 invites the others by the store; a stray connection holds no invitation and is no reader."""
    if rank > 0:
        return PlanReceiver(store.get("plans").decode(), limit_s=_JOIN_LIMIT_S)
    sender = PlanSender.listen(host, size - 1)
    store.set("plans", sender.invitation(host))
    sender.accept(limit_s=_JOIN_LIMIT_S, on_lost=on_lost)
    return sender


def _meet() -> None:
    """Returns once all ranks have called it. On the host: torch's own barrier would choose a device."""
    dist.all_reduce(torch.zeros(1))
