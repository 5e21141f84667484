"""Loads one rank's share of the model and its pool."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.config import load_model_config
from engine.device import choose_device
from engine.head_config import load_head_config
from engine.pool import TargetCache
from engine.target_model import TargetModel
from engine.tp import TpGroup, init_tp_group, validate_tp
from engine.wire import dtype_named
from kernels.ops import Ops
from target_service.capacity import MemoryNeeds, choose_num_pages
from target_service.config import TargetConfig


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
    choose_device(config.device, config.kernel_backend)
    if config.speculative_draft_model_path:
        load_head_config(Path(config.speculative_draft_model_path))


def load_rank(config: TargetConfig, rank: int, init_method: str) -> LoadedRank:
    """Blocks until all ranks came. Rank 0 chooses the pool's size for all.

    Raises ModelLoadError or ConfigError.
    """
    device, ops = choose_device(config.device, config.kernel_backend, num_threads=config.threads_per_rank)
    tp = init_tp_group(rank, config.tp_size, init_method=init_method)
    head = config.speculative_draft_model_path
    model = TargetModel.load(
        Path(config.model_path),
        head_path=Path(head) if head else None,
        dtype=dtype_named(config.dtype),
        ops=ops,
        device=device,
        tp=tp,
    )
    num_pages = None
    if rank == 0:
        needs = MemoryNeeds(model.weight_bytes, model.cache_bytes_per_token)
        context_length = model.config.context_length(config.context_length)
        num_pages = np.array([choose_num_pages(config, needs, context_length=context_length)])
    cache = model.make_cache(int(tp.broadcast_plan(num_pages)[0]), config.page_size)
    return LoadedRank(model, cache, ops, tp)
