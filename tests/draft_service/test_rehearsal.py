"""Rehearsals go through a round's code and leave no trace in the rounds themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from draft_service.codec import Edge
from draft_service.rehearsal import Rehearsal
from engine.device_drafter import DeviceDrafter, DrafterLimits
from engine.draft_batch import ExtendItem, ProposeParams
from engine.extend_batch import ExtendBatch
from engine.graph_capture import Launch
from engine.head_model import HeadModel
from engine.pages import PageAllocator, PageTable
from kernels.reference.ops import ReferenceOps
from paceline.types import MAX_SCRATCH_NODES, TreeShape
from tests.support.extension import needs_extension
from tests.support.rehearsals import assert_ends_where_nothing_comes, assert_ends_with_its_connection, cable
from tests.support.tiny_draft import HIDDEN, assert_same_tree, random_prompt, save_tiny_draft

pytestmark = needs_extension

PAGE_SIZE, NUM_PAGES, VOCAB = 4, 100, 64
SHAPES = (TreeShape(3, 1, 4), TreeShape(3, 2, 6))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> HeadModel:
    return save_tiny_draft(Path(tmp_path_factory.mktemp("tiny"))).head(ReferenceOps())


class Captured:
    """A drafter, and how many of its graphs were launched."""

    def __init__(self, model: HeadModel) -> None:
        self.launched = 0
        self.drafter = DeviceDrafter(model, model.make_cache(NUM_PAGES, PAGE_SIZE), DrafterLimits(16, 2))
        self.drafter.capture(SHAPES, self._capture)

    def _capture(self, launch: Launch) -> Launch:
        def counted() -> None:
            self.launched += 1
            launch()

        return counted


def rehearsal_with(captured: Captured) -> Rehearsal:
    edge = Edge(VOCAB, HIDDEN, feature_id="", head_fingerprint="")
    return Rehearsal(captured.drafter, edge=edge, dtype="float32", page_size=PAGE_SIZE)


def asks() -> Iterator[ExtendItem]:
    """Rounds of one session."""
    table = PageTable(PageAllocator(NUM_PAGES, PAGE_SIZE))
    table.reserve(40 + MAX_SCRATCH_NODES)
    prompt = random_prompt(24, seed=3)
    params = ProposeParams.of(SHAPES[1], seed=0, temperature=0.0)
    for base in range(0, 24, 6):
        part = slice(base, base + 6)
        yield ExtendItem(table, base, prompt.tokens[part], prompt.features[part], params)


def test_a_rehearsal_launches_two_small_graphs_and_changes_no_tree(model: HeadModel) -> None:
    alone, rehearsing = Captured(model), Captured(model)
    rehearsal = rehearsal_with(rehearsing)
    assert rehearsing.launched == 2, "one at its start"
    rehearsing.launched = 0
    num_asks = 0
    for ask in asks():
        rehearsal.run()
        pending = [captured.drafter.begin(ExtendBatch.of([ask])) for captured in (alone, rehearsing)]
        rehearsal.run()
        (tree,), (other,) = (list(trees.trees().trees()) for trees in pending)
        assert_same_tree(tree, other)
        num_asks += 1
    assert rehearsing.launched == alone.launched + 2 * 2 * num_asks > 4 * num_asks
    rehearsal.close()


def test_a_connection_that_breaks_ends_the_rehearsals_and_nothing_else(
    model: HeadModel, caplog: pytest.LogCaptureFixture
) -> None:
    captured = Captured(model)
    rehearsal = rehearsal_with(captured)
    assert_ends_with_its_connection(rehearsal, rehearsal._target._frames, captured, caplog)


@pytest.mark.parametrize("from_ours", [True, False])
def test_a_connection_by_which_nothing_comes_ends_the_rehearsals_and_delays_none(
    model: HeadModel, from_ours: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    captured = Captured(model)
    with cable() as link:
        monkeypatch.setattr("draft_service.rehearsal.loopback_pair", lambda: (link.ours, link.theirs))
        assert_ends_where_nothing_comes(lambda: rehearsal_with(captured), link, caplog, from_ours=from_ours)
