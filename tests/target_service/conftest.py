"""A tiny random target, loaded once; a fresh decode loop over it for each test."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import pytest
import torch

from engine.drafter import Drafter
from engine.head_model import HeadModel
from engine.pages import PageAllocator
from kernels.backends import load_ops
from target_service.loading import LoadedRank
from tests.support.driven_drafts import DrivenDraft, HeadProposer, Prophet
from tests.support.target_peer import RunningTarget, running_target
from tests.support.tiny_draft import VOCAB
from tests.support.tiny_target import DrivenLoop, TinyTarget, load_tiny_rank, save_tiny_target


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> TinyTarget:
    return save_tiny_target(tmp_path_factory.mktemp("tiny-target"))


@pytest.fixture(scope="session")
def tiny_rank(tiny_target: TinyTarget) -> LoadedRank:
    return load_tiny_rank(tiny_target)


@pytest.fixture
def make_loop(tiny_target: TinyTarget, tiny_rank: LoadedRank) -> Callable[..., DrivenLoop]:
    def make(**changes: object) -> DrivenLoop:
        return DrivenLoop(tiny_target.config(**changes), tiny_rank)

    return make


@pytest.fixture
def loop(make_loop: Callable[..., DrivenLoop]) -> DrivenLoop:
    return make_loop()


@pytest.fixture(scope="session")
def head_proposer(tiny_target: TinyTarget) -> HeadProposer:
    device = torch.device("cpu")
    head = HeadModel.load(
        tiny_target.head_path, tiny_target.model_path, dtype=torch.float32, ops=load_ops("auto", device), device=device
    )
    return HeadProposer(Drafter(head, head.make_cache(256, 4), 512), PageAllocator(256, 4))


@pytest.fixture
def head_draft(loop: DrivenLoop, head_proposer: HeadProposer) -> DrivenDraft:
    """A connected draft with the real head."""
    draft = DrivenDraft(loop, head_proposer)
    draft.connect()
    return draft


@pytest.fixture
def make_prophet(loop: DrivenLoop) -> Callable[..., DrivenDraft]:
    """make_prophet(texts): a connected draft that proposes these texts' own tokens."""

    def make(texts: list[list[int]], seed: int = 0) -> DrivenDraft:
        draft = DrivenDraft(loop, Prophet(texts, np.random.default_rng(seed), VOCAB))
        draft.connect()
        return draft

    return make


@pytest.fixture
def serve_target(tiny_target: TinyTarget) -> Callable[..., contextlib.AbstractAsyncContextManager[RunningTarget]]:
    """serve_target(**flags): a running target service."""

    def serving(**changes: object) -> contextlib.AbstractAsyncContextManager[RunningTarget]:
        return running_target(tiny_target.config(**changes))

    return serving
