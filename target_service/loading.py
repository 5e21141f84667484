"""Loads one rank's share of the model and its pool."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.config import load_model_config
from engine.device import choose_ops, rank_devices
from engine.head_weights import check_head
from engine.memory import Room, find_room, refusing_exhaustion
from engine.pool import TargetCache
from engine.target_model import TargetModel
from engine.tp import Meeting, TpGroup, init_tp_group, validate_tp
from engine.wire import dtype_named
from kernels.ops import Ops
from target_service.capacity import CPU_POOL_BYTES, choose_pages, memory_needs, pool_flags
from target_service.config import TargetConfig
from target_service.tp_workers import end_with_lost_rank


@dataclass(frozen=True, slots=True)
class LoadedRank:
    """What a rank steps with."""

    model: TargetModel
    cache: TargetCache
    ops: Ops
    tp: TpGroup


def check_model(config: TargetConfig) -> None:
    """What can be known before any rank starts. Raises ModelLoadError or ConfigError."""
    model = load_model_config(Path(config.model_path))
    validate_tp(model, config.tp_size)
    model.context_length(config.context_length)
    devices = rank_devices(config.device, base_gpu_id=config.base_gpu_id, tp_size=config.ranks_per_host)
    choose_ops(devices[0], config.kernel_backend, dtype=config.dtype)
    if config.speculative_draft_model_path:
        check_head(Path(config.speculative_draft_model_path), model)


def load_rank(config: TargetConfig, rank: int, init_method: str) -> LoadedRank:
    """Blocks until all ranks came. Rank 0 chooses the pool's size for all.

    On a GPU it captures the graphs of steps, too. Raises ModelLoadError or ConfigError.
    """
    devices = rank_devices(config.device, base_gpu_id=config.base_gpu_id, tp_size=config.ranks_per_host)
    device = devices[config.own_ranks.index(rank)]
    ops = choose_ops(device, config.kernel_backend, dtype=config.dtype, num_threads=config.threads_per_rank)
    meeting = Meeting(num_hosts=config.nnodes, on_lost=end_with_lost_rank)
    tp = init_tp_group(rank, config.tp_size, init_method=init_method, device=device, meeting=meeting)
    head = config.speculative_draft_model_path
    with refusing_exhaustion(device):
        model = TargetModel.load(
            Path(config.model_path),
            head_path=Path(head) if head else None,
            dtype=dtype_named(config.dtype),
            ops=ops,
            device=device,
            tp=tp,
        )
        cache = model.make_cache(_agree_on_pages(config, model, tp), config.page_size)
        if ops.supports_graphs and not config.disable_cuda_graph:
            model.capture(cache, min(config.max_rows_per_step, config.cuda_graph_max_rows))
    return LoadedRank(model, cache, ops, tp)


def _agree_on_pages(config: TargetConfig, model: TargetModel, tp: TpGroup) -> int:
    """Rank 0 alone raises ConfigError: the others end with it."""
    needs = memory_needs(config, model)
    room = find_room(model.device, pool_flags(config), needs, cpu_limit=CPU_POOL_BYTES, num_ranks=config.ranks_per_host)
    shared, free = tp.least(np.array([room.shared, room.free])).tolist()
    num_pages = None
    if tp.rank == 0:
        context_length = model.config.context_length(config.context_length)
        pages = choose_pages(
            config, Room(shared, free), context_length=context_length, bytes_per_token=needs.bytes_per_token
        )
        num_pages = np.array([pages])
    return int(tp.broadcast_plan(num_pages)[0])
