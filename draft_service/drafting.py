"""The drafter of a service: the one for its device, with graphs captured and kernels run once."""

from __future__ import annotations

import torch

from draft_service.batcher import StepLimits
from draft_service.config import DraftConfig
from draft_service.warm_up import warm_up
from engine.device_drafter import DeviceDrafter, DrafterLimits
from engine.drafter import Drafter
from engine.graph_capture import CudaCapture, logged_capture
from engine.head_model import HeadModel
from engine.pages import PageAllocator

AnyDrafter = Drafter | DeviceDrafter

_CPU_BULK_ROWS, _GPU_BULK_ROWS = 64, 256


def choose_limits(config: DraftConfig, device: torch.device) -> StepLimits:
    """A GPU reads the head's weights for some hundred rows in the time that it takes for one."""
    bulk_rows = config.max_bulk_rows
    if bulk_rows is None:
        bulk_rows = min(_CPU_BULK_ROWS if device.type == "cpu" else _GPU_BULK_ROWS, config.max_round_rows)
    return StepLimits(config.max_round_rows, bulk_rows)


def load_drafter(config: DraftConfig, model: HeadModel, allocator: PageAllocator, *, limits: StepLimits) -> AnyDrafter:
    """Allocates the pool for the allocator's pages. Takes seconds; its first round is as fast as the next."""
    cache = model.make_cache(allocator.num_pages, allocator.page_size)
    if not model.ops.supports_graphs:
        drafter: AnyDrafter = Drafter(model, cache, limits.max_rows)
    else:
        drafter = DeviceDrafter(model, cache, DrafterLimits(limits.max_rows, config.max_running_requests))
        if not config.disable_cuda_graph:
            with logged_capture(f"CUDA graphs of draft trees {config.cuda_graph_shapes}", model.device):
                drafter.capture(config.graph_shapes, CudaCapture(model.device))
    warm_up(drafter, allocator, feature_size=model.config.hidden_size)
    return drafter
