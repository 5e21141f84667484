"""Pages of a pool from a share of a GPU's memory, and what is refused by the flags' names."""

from __future__ import annotations

import pytest
import torch

from engine import memory
from engine.memory import MemoryNeeds, PoolFlags, PoolUse, Room, choose_num_pages, find_room, refusing_exhaustion
from paceline.errors import ConfigError

GIB = 2**30
GPU = torch.device("cuda:1")
NEEDS = MemoryNeeds(weight_bytes=20 * GIB, bytes_per_token=GIB // 16, workspace_bytes=3 * GIB)  # a page is 1 GiB
USE = PoolUse("request", useful_pages=1000, least_tokens=16)


def flags(**changes: object) -> PoolFlags:
    return PoolFlags(**{"page_size": 16, "max_total_tokens": None, "mem_fraction_static": 0.5, **changes})


def gpu_room(monkeypatch: pytest.MonkeyPatch, *, free_gib: int, fraction: float = 0.5) -> Room:
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda at: (free_gib * GIB, 100 * GIB))
    return find_room(GPU, flags(mem_fraction_static=fraction), NEEDS, cpu_limit=0)


def test_a_share_of_the_whole_gpu_holds_weights_workspaces_and_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    room = gpu_room(monkeypatch, free_gib=80)
    assert room == Room(shared=50 - 20 - 3 - memory._GPU_FIXED_BYTES // GIB, free=80 - 3)
    assert choose_num_pages(room, flags(), USE, page_bytes=GIB) == room.shared


def test_a_draft_and_a_target_fit_one_gpu_with_their_defaults() -> None:
    from draft_service.config import DraftConfig
    from target_service.config import TargetConfig

    assert DraftConfig().mem_fraction_static + TargetConfig().mem_fraction_static <= 0.9


def test_memory_that_another_process_holds_is_named_with_the_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    room = gpu_room(monkeypatch, free_gib=20)
    message = r"--mem-fraction-static 0.5 takes 25.0 GiB .* 17.0 GiB are available; .* lower --mem-fraction-static of "
    with pytest.raises(ConfigError, match=message + "this service or of the draft or target beside it"):
        choose_num_pages(room, flags(), USE, page_bytes=GIB)
    with pytest.raises(ConfigError, match=r"--max-total-tokens 512 takes 32.0 GiB .* lower it"):
        choose_num_pages(room, flags(max_total_tokens=512), USE, page_bytes=GIB)
    assert choose_num_pages(room, flags(max_total_tokens=256), USE, page_bytes=GIB) == 16


def test_a_share_that_the_weights_fill_leaves_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    room = gpu_room(monkeypatch, free_gib=80, fraction=0.2)
    assert room.shared == 0
    with pytest.raises(ConfigError, match="0 KV pages of 16 tokens do not hold one request, which takes 1; raise"):
        choose_num_pages(room, flags(mem_fraction_static=0.2), USE, page_bytes=GIB)


def test_the_ranks_of_a_host_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    one = find_room(torch.device("cpu"), flags(), MemoryNeeds(0, 64), cpu_limit=1 << 20)
    two = find_room(torch.device("cpu"), flags(), MemoryNeeds(0, 64), cpu_limit=1 << 20, num_ranks=2)
    assert (one.shared, two.shared) == (1024, 512)


def test_a_full_gpu_is_an_error_of_the_flags() -> None:
    with (
        pytest.raises(ConfigError, match=r"cuda:1 has too little memory: CUDA out of memory\. .*--mem-fraction-static"),
        refusing_exhaustion(GPU),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
