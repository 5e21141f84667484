"""Draft services in this process, with a tiny random head."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

import pytest
import torch
from prometheus_client import CollectorRegistry

from draft_service.service import DraftService, LoadedDraft
from engine.drafter import Drafter
from engine.head_model import HeadModel
from engine.pages import PageAllocator
from kernels.backends import load_ops
from paceline.rpc import open_channel
from tests.support.draft_peer import Running
from tests.support.tiny_draft import Alone, TinyDraft, save_tiny_draft


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyDraft:
    return save_tiny_draft(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def alone(tiny: TinyDraft) -> Alone:
    device = torch.device("cpu")
    model = HeadModel.load(
        tiny.head_path, tiny.model_path, dtype=torch.float32, ops=load_ops("auto", device), device=device
    )
    return Alone(Drafter(model, model.make_cache(128, 4), 512), PageAllocator(128, 4))


@pytest.fixture
def serve(tiny: TinyDraft) -> Callable[..., contextlib.AbstractAsyncContextManager[Running]]:
    """serve(**flags): a running draft service."""

    @contextlib.asynccontextmanager
    async def serving(**changes: object) -> AsyncIterator[Running]:
        draft = LoadedDraft.load(tiny.config(**changes))
        registry = CollectorRegistry()
        service = DraftService(draft, registry=registry)
        port = await service.start()
        async with open_channel(f"127.0.0.1:{port}") as channel:
            yield Running(service, draft, registry, channel)
        await service.close()
        draft.engine.table.check()

    return serving
