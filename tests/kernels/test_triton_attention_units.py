"""The table of tiles and splits: what it covers, how large it gets, and which tiles it chooses. No kernel runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.ops import AttentionBatch
from tests.support.attention_batches import BRANCHY_TREE, Heads, Request, limits_of, make_batch

pytest.importorskip("triton", reason="triton is not installed here")
from kernels.triton_ops.attention_staging import Section, Staging
from kernels.triton_ops.attention_tuning import AttentionTuning
from kernels.triton_ops.attention_units import UnitRule

NARROW, WIDE = 4, 16
RULE = UnitRule(AttentionTuning(min_split_len=32), (NARROW, WIDE), target_units=33)


def _random_batch(rng: np.random.Generator) -> AttentionBatch:
    longest = int(rng.choice([8, 100, 3000]))
    requests = [
        Request(int(rng.integers(longest)), 9, BRANCHY_TREE, q_len=int(rng.integers(1, 10)))
        if rng.random() < 0.3
        else Request(int(rng.integers(longest)), int(rng.choice([0, 1, 1, 1, 4, 17, 90])))
        for _ in range(rng.integers(1, 40))
    ]
    return make_batch(requests, 16)


@pytest.mark.parametrize("tile_rows", [NARROW, WIDE])
def test_every_row_lies_in_one_tile_whose_splits_are_all_there(tile_rows: int) -> None:
    for seed in range(50):
        batch = _random_batch(np.random.default_rng(seed))
        units = RULE.make_units(batch, tile_rows)
        tiles: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for request, first, code, partial in units.table.tolist():
            tiles.setdefault((request, first), []).append((code & 0xFFFF, code >> 16, partial))
        q_len = np.diff(batch.q_indptr)
        assert list(tiles) == [(r, first) for r, rows in enumerate(q_len) for first in range(0, rows, tile_rows)]
        taken: list[int] = []
        for splits in tiles.values():
            _, num_splits, partial = splits[0]
            assert splits == [(i, num_splits, partial) for i in range(num_splits)]
            if num_splits > 1:
                taken += range(partial, partial + num_splits)
        assert sorted(taken) == list(range(units.num_partials))


@pytest.mark.parametrize("tile_rows", [NARROW, WIDE])
def test_no_batch_of_a_bucket_outgrows_the_grid_or_the_workspace(tile_rows: int) -> None:
    for seed in range(50):
        batch = _random_batch(np.random.default_rng(seed))
        units = RULE.make_units(batch, tile_rows)
        num_rows, num_requests = int(batch.q_indptr[-1]), len(batch.prefix_len)
        assert len(units.table) <= RULE.max_units(num_rows, tile_rows, max_requests=num_requests)
        assert units.num_partials <= RULE.max_partials


def test_one_long_request_is_split_over_the_device_and_a_short_one_is_not() -> None:
    long, short = make_batch([Request(8191, 1)], 16), make_batch([Request(31, 1)], 16)
    assert len(RULE.make_units(long, NARROW).table) == RULE.target_units
    assert len(RULE.make_units(short, NARROW).table) == 1
    assert RULE.make_units(short, NARROW).num_partials == 0


def test_a_full_device_splits_only_what_would_end_last() -> None:
    batch = make_batch([Request(8191, 1), *[Request(199, 1)] * 255], 16)
    units = RULE.make_units(batch, NARROW)
    split = units.table[units.table[:, 2] >> 16 > 1]
    assert set(split[:, 0]) == {0} and len(split) == 5


@pytest.mark.parametrize(
    ("requests", "rows"),
    [
        ([], NARROW),
        ([Request(5000, 1)], NARROW),
        ([Request(100, 4)] * 50, NARROW),
        ([Request(100, 16)] * 4, WIDE),
        ([*[Request(100, 1)] * 200, Request(0, 64)], NARROW),
        ([*[Request(100, 1)] * 20, Request(3000, 512)], WIDE),
    ],
    ids=["nothing", "decode", "small", "chunks", "decode and a small chunk", "decode and a large chunk"],
)
def test_wide_tiles_are_taken_where_they_save_reads(requests: list[Request], rows: int) -> None:
    assert RULE.choose_rows(make_batch(requests, 16)) == rows


def test_buffers_of_any_grouping_have_tiles() -> None:
    from kernels.triton_ops.attention_buffers import TritonAttentionBuffers

    for heads, variants in [
        (Heads(9, 3, 64), (5, 21)),
        (Heads(32, 8, 128), (4, 16)),
        (Heads(4, 4, 64), (16, 64)),
        (Heads(71, 1, 64), (1,)),
    ]:
        limits = limits_of([make_batch([Request(10, 1)], 16)], heads)
        assert TritonAttentionBuffers(limits, torch.device("cpu")).variants == variants


def test_staging_keeps_each_section_apart() -> None:
    sections = [Section("few", 3, np.int32), Section("wide", 5, np.uint64), Section("many", 100, np.int32)]
    staging = Staging(sections, torch.device("cpu"))
    addresses = {name: tensor.data_ptr() for name, tensor in staging.tensors.items()}
    for count in (3, 2, 1):
        staging.upload(
            {
                "few": np.full(count, count, np.int32),
                "wide": np.full(count, 2**63 + count, np.uint64),
                "many": np.full(30 * count, -count, np.int32),
            }
        )
        assert staging.tensors["few"].tolist()[:count] == [count] * count
        assert staging.tensors["wide"].numpy().view(np.uint64).tolist()[:count] == [2**63 + count] * count
        assert staging.tensors["many"].tolist()[: 30 * count] == [-count] * 30 * count
    assert {name: tensor.data_ptr() for name, tensor in staging.tensors.items()} == addresses
