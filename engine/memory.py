"""How many pages a service's pool gets, of the memory that its device has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
import torch

from engine.pages import pages_for
from paceline.errors import ConfigError

# Of a process on a GPU: CUDA context, loaded kernels, workspaces of NCCL and of products, the allocator's waste.
_GPU_FIXED_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Of one process. What a token takes in the pool, and what else lies on the device."""

    weight_bytes: int
    bytes_per_token: int
    workspace_bytes: int = 0  # of steps and their captured graphs; counted on a GPU


@dataclass(frozen=True, slots=True)
class PoolFlags:
    """What the service's flags say of its pool."""

    page_size: int
    max_total_tokens: int | None
    mem_fraction_static: float


@dataclass(frozen=True, slots=True)
class PoolUse:
    """Who the pages are for: as many as all tenants can use, and not fewer than one of least_tokens takes."""

    tenant: str  # "request" or "session"
    useful_pages: int
    least_tokens: int


@dataclass(frozen=True, slots=True)
class Room:
    """Pages that a device has room for: within --mem-fraction-static, and within what is free."""

    shared: int
    free: int


def find_room(
    device: torch.device, flags: PoolFlags, needs: MemoryNeeds, *, cpu_limit: int, num_ranks: int = 1
) -> Room:
    """To be called once the weights are loaded.

    A GPU's share is --mem-fraction-static of all its memory, for everything that this process puts there. A host's
    memory belongs to the other services, too: its pools, of all num_ranks together, take at most cpu_limit bytes, for
    a pool is touched whole when it is zeroed.
    """
    page_bytes = needs.bytes_per_token * flags.page_size
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what the loading of weights used in between
        free, total = torch.cuda.mem_get_info(device)
        share = int(flags.mem_fraction_static * total) - needs.weight_bytes - needs.workspace_bytes - _GPU_FIXED_BYTES
        return Room(max(share, 0) // page_bytes, max(free - needs.workspace_bytes, 0) // page_bytes)
    available = psutil.virtual_memory().available // num_ranks
    share = min(int(flags.mem_fraction_static * available), cpu_limit // num_ranks)
    return Room(share // page_bytes, available // page_bytes)


def choose_num_pages(room: Room, flags: PoolFlags, use: PoolUse, *, page_bytes: int) -> int:
    """Pages for --max-total-tokens, or what the tenants can use at most, bounded by the share of memory.

    Raises ConfigError, naming the flags, where that is more than is free, or less than one tenant takes.
    """
    if flags.max_total_tokens is not None:
        asked = f"--max-total-tokens {flags.max_total_tokens}"
        remedy = "lower it"
        num_pages = pages_for(flags.max_total_tokens, flags.page_size)
    else:
        asked = f"--mem-fraction-static {flags.mem_fraction_static}"
        remedy = (
            "another process uses the device: lower --mem-fraction-static of this service or of the draft or target "
            "beside it, set --max-total-tokens, or choose another --device"
        )
        num_pages = min(use.useful_pages, room.shared)
    if num_pages > room.free:
        raise ConfigError(
            f"{asked} takes {num_pages * page_bytes / 2**30:.1f} GiB a rank for the KV pool and "
            f"{room.free * page_bytes / 2**30:.1f} GiB are available; {remedy}"
        )
    least = pages_for(use.least_tokens, flags.page_size)
    if num_pages < least:
        raise ConfigError(
            f"{num_pages} KV pages of {flags.page_size} tokens do not hold one {use.tenant}, which takes {least}; "
            "raise --max-total-tokens or --mem-fraction-static"
        )
    return num_pages


def workspace_bytes(num_rows: int, *, vocab_size: int, hidden_size: int, inner_size: int, itemsize: int) -> int:
    """What the largest step and its captured graph need: logits in fp32, up to four copies of them where ranks share
    the vocabulary, and a layer's activations. inner_size: of the MLP."""
    return num_rows * (4 * 4 * vocab_size + itemsize * (8 * hidden_size + 4 * inner_size))


@contextmanager
def refusing_exhaustion(device: torch.device) -> Iterator[None]:
    """Turns a full GPU into a ConfigError that names the flags; for what a service loads before it serves."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        reason = str(error).partition(". ")[0]
        raise ConfigError(
            f"{device} has too little memory: {reason}. Lower --mem-fraction-static of this service or of the draft or "
            "target beside it, or choose another --device; a model too large for one GPU takes a higher --tp-size"
        ) from error
