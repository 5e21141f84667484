"""The table of tiles and splits: what it covers, how large it gets, and which tiles it chooses. No kernel runs."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from kernels.ops import AttentionBatch
from tests.support.attention_batches import BRANCHY_TREE, Heads, Request, limits_of, make_batch

pytest.importorskip("triton", reason="triton is not installed here")
from kernels.round_tables import choose_rows
from kernels.triton_ops.attention_staging import Staging
from kernels.triton_ops.attention_tuning import AttentionTuning
from kernels.triton_ops.attention_units import Units, units_of
from tests.support.extension import needs_extension

pytestmark = needs_extension

NARROW, WIDE = 4, 16
RULE = AttentionTuning(min_split_len=32).unit_rule(group=4, target_units=33)


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
        units = units_of(RULE, batch, tile_rows)
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
        units = units_of(RULE, batch, tile_rows)
        num_rows, num_requests = int(batch.q_indptr[-1]), len(batch.prefix_len)
        assert len(units.table) <= RULE.max_units(num_rows, tile_rows, max_requests=num_requests)
        assert units.num_partials <= RULE.max_partials


def test_one_long_request_is_split_over_the_device_and_a_short_one_is_not() -> None:
    long, short = make_batch([Request(8191, 1)], 16), make_batch([Request(31, 1)], 16)
    assert len(units_of(RULE, long, NARROW).table) == RULE.target_units
    assert len(units_of(RULE, short, NARROW).table) == 1
    assert units_of(RULE, short, NARROW).num_partials == 0


def test_a_full_device_splits_only_what_would_end_last() -> None:
    batch = make_batch([Request(8191, 1), *[Request(199, 1)] * 255], 16)
    units = units_of(RULE, batch, NARROW)
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
    assert choose_rows(RULE.numbers, make_batch(requests, 16)) == rows


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


def test_staging_keeps_each_table_apart() -> None:
    batches = [_random_batch(np.random.default_rng(seed)) for seed in range(20)]
    limits = limits_of(batches, Heads(16, 4, 128))
    most = RULE.max_units(limits.max_rows, NARROW, max_requests=limits.max_requests)
    staging = Staging(limits, RULE, max_units=most, num_ahead=300, device=torch.device("cpu"))
    tables, ahead = staging.tables, staging.upload.tensor[:300]
    addresses = [getattr(tables, field.name).data_ptr() for field in fields(tables)]
    for number, batch in enumerate(batches):
        start = None
        if number % 3:
            start = 100 * (number % 3)
            staging.upload.stage()[start:300] = number
        variant = staging.load(batch, 0, start=start)
        assert start is None or (ahead[start:] == number).all()
        assert variant == choose_rows(RULE.numbers, batch)
        units = units_of(RULE, batch, variant).table
        assert tables.counts.tolist() == [len(units), batch.q_indptr[-1], len(batch.prefix_len)]
        assert tables.units.tolist()[: units.size] == units.reshape(-1).tolist()
        assert tables.ancestors.numpy().view(np.uint64).tolist()[: len(batch.ancestors)] == batch.ancestors.tolist()
        for name in ("q_indptr", "prefix_len", "local_len", "is_causal", "page_indptr", "page_ids"):
            array = getattr(batch, name)
            assert getattr(tables, name).tolist()[: len(array)] == array.tolist()
    assert [getattr(tables, field.name).data_ptr() for field in fields(tables)] == addresses


@pytest.mark.parametrize("invariant", [False, True])
def test_units_are_those_of_a_plain_reference(invariant: bool) -> None:
    for seed in range(50):
        batch = replace(_random_batch(np.random.default_rng(seed)), batch_invariant=invariant)
        for tile_rows in (NARROW, WIDE):
            units, wanted = units_of(RULE, batch, tile_rows), _plain_units(batch, tile_rows)
            assert units.table.tolist() == wanted.table.tolist()
            assert units.num_partials == wanted.num_partials


def _plain_units(batch: AttentionBatch, tile_rows: int) -> Units:
    tiles = []
    for request, q_len in enumerate(np.diff(batch.q_indptr).tolist()):
        kv_len = int(batch.prefix_len[request] + batch.local_len[request])
        for first in range(0, q_len, tile_rows):
            unseen = max(q_len - first - tile_rows, 0) if batch.is_causal[request] else 0
            tiles.append((request, first, kv_len - unseen, q_len))
    even = max(RULE.min_split_len, math.ceil(sum(stop for _, _, stop, _ in tiles) / RULE.target_units))
    table, partials = [], 0
    for request, first, stop, q_len in tiles:
        splits = max(1, math.ceil(stop / even))
        if batch.batch_invariant:
            splits = max(1, math.ceil(stop / RULE.invariant_split_len)) if q_len <= tile_rows else 1
        table += [(request, first, split + (splits << 16), partials if splits > 1 else 0) for split in range(splits)]
        partials += splits if splits > 1 else 0
    return Units(np.array(table, np.int32).reshape(-1, 4), partials)
