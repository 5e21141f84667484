"""The drafter of a service: the one for its device, with graphs captured and kernels run once."""

from __future__ import annotations

from draft_service.batcher import StepLimits
from draft_service.config import DraftConfig
from draft_service.warm_up import warm_up
from engine.device_drafter import DeviceDrafter, DrafterLimits
from engine.drafter import Drafter
from engine.graph_capture import CudaCapture, logged_capture
from engine.head_model import HeadModel
from engine.pages import PageAllocator

AnyDrafter = Drafter | DeviceDrafter


def load_drafter(config: DraftConfig, model: HeadModel, allocator: PageAllocator) -> AnyDrafter:
    """Allocates the pool for the allocator's pages. Takes seconds; its first round is as fast as the next."""
    cache = model.make_cache(allocator.num_pages, allocator.page_size)
    limits = StepLimits(config.max_round_rows, config.max_bulk_rows)
    if not model.ops.supports_graphs:
        drafter: AnyDrafter = Drafter(model, cache, limits.max_rows)
    else:
        drafter = DeviceDrafter(model, cache, DrafterLimits(limits.max_rows, config.max_running_requests))
        if not config.disable_cuda_graph:
            with logged_capture(f"CUDA graphs of draft trees {config.cuda_graph_shapes}", model.device):
                drafter.capture(config.graph_shapes, CudaCapture(model.device))
    warm_up(drafter, allocator, feature_size=model.config.hidden_size)
    return drafter
