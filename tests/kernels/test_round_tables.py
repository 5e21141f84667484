"""A round's tables against the same written one number at a time, for random sessions, pieces and groves."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import pytest

from kernels.ops import AttentionBatch
from kernels.round_asks import Survey, survey
from kernels.round_tables import (
    ExtendLayout,
    Growth,
    GrowthLayout,
    PageLists,
    Piece,
    Room,
    SessionRows,
    Wishes,
    choose_rows,
    extend_tables,
    growth_tables,
    make_units,
)
from kernels.unit_rule import UnitRule
from tests.support.extension import needs_extension

pytestmark = needs_extension

PAGE_SIZE, NUM_PAGES, SEATS = 4, 40, 12
SPARE_SLOT, SPARE_PLACE = 999, 77
RULE = UnitRule((4, 16), target_units=9, wide_gain=1.5, min_split_len=16, invariant_split_len=64)
ROOM = Room(RULE.numbers, SPARE_SLOT, SPARE_PLACE)
MIDDLE, STAGE = 16 << 10, 48 << 10  # bytes
MIN_SCORES = -np.arange(1000) / 7


class Case(NamedTuple):
    rows: SessionRows
    wishes: Wishes
    capacity: np.ndarray


def random_case(rng: np.random.Generator, *, most_rows: int = 9) -> Case:
    num_sessions = int(rng.integers(1, SEATS))
    num_rows = rng.integers(1, most_rows, num_sessions)
    rows = SessionRows(
        page_ids=rng.permutation(SEATS * NUM_PAGES).reshape(SEATS, NUM_PAGES).astype(np.int32),
        seats=rng.permutation(SEATS)[:num_sessions],
        base_len=rng.integers(0, 60, num_sessions),
        num_rows=num_rows,
        tokens=rng.integers(0, 1000, num_rows.sum()).astype(np.int32),
        page_size=PAGE_SIZE,
    )
    wishes = Wishes(
        shapes=rng.integers(0, 900, (4, num_sessions)),
        seed=rng.integers(0, 2**64, SEATS, np.uint64),
        temperature=rng.choice([0.0, 1.3], SEATS, p=[0.9, 0.1]),
        min_scores=MIN_SCORES,
    )
    return Case(rows, wishes, np.full(SEATS, NUM_PAGES * PAGE_SIZE))


def slot(case: Case, session: int, position: int) -> int:
    page = case.rows.page_ids[case.rows.seats[session], position // PAGE_SIZE]
    return int(page) * PAGE_SIZE + position % PAGE_SIZE


def pages(case: Case, session: int, num_tokens: int) -> list[int]:
    return case.rows.page_ids[case.rows.seats[session], : -(-num_tokens // PAGE_SIZE)].tolist()


def read(stage: np.ndarray, start: int, count: int, dtype: type = np.int32) -> list[int]:
    return stage[start : start + count * np.dtype(dtype).itemsize].view(dtype).tolist()


def listed(stage: np.ndarray, page_indptr: list[int]) -> list[list[int]]:
    ids = stage[MIDDLE:].view(np.int32)
    return [ids[start:stop].tolist() for start, stop in itertools.pairwise(page_indptr)]


def check_units(stage: np.ndarray, layout: ExtendLayout | GrowthLayout, batch: AttentionBatch, variant: int) -> None:
    table = np.empty(4 * layout.max_units, np.int32)
    count, _ = make_units(ROOM.rule, batch, variant, table)
    assert read(stage, layout.counts, 3) == [count, batch.q_indptr[-1], len(batch.prefix_len)]
    assert read(stage, layout.units, 4 * count) == table[: 4 * count].tolist()


def attention(q_len: list[int], prefix_len: list[int], *, is_causal: bool) -> AttentionBatch:
    return AttentionBatch(
        q_indptr=np.concatenate([[0], np.cumsum(q_len)]).astype(np.int32),
        prefix_len=np.array(prefix_len, np.int32),
        local_len=np.array(q_len, np.int32),
        page_indptr=np.zeros(len(q_len) + 1, np.int32),
        page_ids=np.zeros(0, np.int32),
        is_causal=np.full(len(q_len), is_causal),
        ancestors=np.zeros(sum(q_len), np.uint64),
        page_size=PAGE_SIZE,
    )


def extend_layout(bucket: int) -> ExtendLayout:
    return ExtendLayout(bucket, 128, 6400, 6528, 7168, 7680, 8192, 8832, max_units=200)


def growth_layout(size: int, topk: int, num_scratch: int) -> GrowthLayout:
    at = MIDDLE
    return GrowthLayout(size, topk, num_scratch, at, at + 9600, at + 9728, at + 9856, at + 9984, at + 10112, 200)


@pytest.mark.parametrize("most_rows", [3, 9, 30])
def test_the_tables_of_committed_rows_are_those_of_a_plain_reference(most_rows: int) -> None:
    for seed in range(60):
        rng = np.random.default_rng(seed)
        case = random_case(rng, most_rows=most_rows)
        rows, total = case.rows, len(case.rows.tokens)
        first = int(rng.integers(total)) if rng.random() < 0.5 else 0
        piece = Piece(first, int(rng.integers(first, total)) + 1, int(rng.choice([0, 5])), bool(rng.random() < 0.5))
        size = piece.last - first + int(rng.integers(3))
        layout, stage = extend_layout(size), rng.integers(0, 256, STAGE).astype(np.uint8)
        filled = extend_tables(
            stage, np.array(layout), rows, piece=piece, at=PageLists(MIDDLE, MIDDLE + 512), room=ROOM
        )

        owners = np.arange(len(rows.seats)).repeat(rows.num_rows)
        within = np.concatenate([np.arange(count) for count in rows.num_rows])
        wanted: list[tuple[int, int, int]] = []
        pieces: dict[int, list[int]] = {}
        for row in range(first, piece.last):
            session, position = int(owners[row]), int(rows.base_len[owners[row]] + within[row])
            wanted.append((int(rows.tokens[row]), position, slot(case, session, position)))
            pieces.setdefault(session, []).append(row)
        padding = [(0, 0, SPARE_SLOT)] * (size - len(wanted))
        columns = np.array(read(stage, layout.columns, 5 * size, np.int64)).reshape(5, size)
        assert columns[:3].T.tolist() == [list(entry) for entry in wanted + padding]
        ends = [
            session if piece.keeps_hidden and owned[-1] + 1 == rows.num_rows[: session + 1].sum() else SPARE_PLACE
            for session, owned in pieces.items()
        ]
        spare = size - len(pieces)
        assert columns[3].tolist() == [owned[-1] - first for owned in pieces.values()] + [0] * spare
        assert columns[4].tolist() == ends + [SPARE_PLACE] * spare

        prefix_len = [int(rows.base_len[session] + within[owned[0]]) for session, owned in pieces.items()]
        batch = attention([len(owned) for owned in pieces.values()], prefix_len, is_causal=True)
        count = len(pieces)
        assert read(stage, layout.q_indptr, count + 1) == batch.q_indptr.tolist()
        assert read(stage, layout.prefix_len, count) == prefix_len
        assert read(stage, layout.local_len, count) == batch.local_len.tolist()
        page_indptr = read(stage, layout.page_indptr, count + 1)
        lengths = (batch.prefix_len + batch.local_len + piece.scratch).tolist()
        assert listed(stage, page_indptr) == [pages(case, s, n) for s, n in zip(pieces, lengths, strict=True)]
        assert (page_indptr[0], filled.stop) == (128, MIDDLE + 4 * page_indptr[-1])
        assert filled.variant == (RULE.rows[0] if len(wanted) <= RULE.rows[0] else choose_rows(ROOM.rule, batch))
        check_units(stage, layout, batch, filled.variant)


@pytest.mark.parametrize("shares", [False, True])
def test_the_tables_of_growing_trees_are_those_of_a_plain_reference(shares: bool) -> None:
    for seed in range(60):
        rng = np.random.default_rng(seed)
        case = random_case(rng)
        rows, wishes, num_sessions = case.rows, case.wishes, len(case.rows.seats)
        places = np.arange(num_sessions)
        if not shares:
            places = np.sort(rng.permutation(num_sessions)[: rng.integers(1, num_sessions + 1)])
        topk, num_scratch, count = int(rng.integers(1, 11)), int(rng.integers(0, 33)), len(places)
        size = count + int(rng.integers(3))
        layout, stage = growth_layout(size, topk, num_scratch), rng.integers(0, 256, STAGE).astype(np.uint8)
        at, page_indptr = PageLists(MIDDLE, MIDDLE + 16000), -1
        if shares:
            whole = Piece(0, len(rows.tokens), num_scratch, True)
            page_indptr = extend_layout(len(rows.tokens)).page_indptr
            extend_tables(stage, np.array(extend_layout(len(rows.tokens))), rows, piece=whole, at=at, room=ROOM)
        variant = RULE.rows_for(topk)
        growth = Growth(wishes, places, page_indptr, variant)
        grown = growth_tables(stage, np.array(layout), rows, growth=growth, at=at, room=ROOM)

        ends = rows.num_rows.cumsum()
        wanted = []
        for place in places.tolist():
            seat, length = rows.seats[place], int(rows.base_len[place] + rows.num_rows[place])
            wanted.append(
                [
                    place,
                    int(rows.tokens[ends[place] - 1]),
                    length,
                    *wishes.shapes[:3, place].tolist(),
                    int(wishes.seed[seat].view(np.int64)),
                    int(wishes.temperature[seat].view(np.int64)),
                    int(MIN_SCORES[wishes.shapes[3, place]].view(np.int64)),
                    *(slot(case, place, length + node) for node in range(num_scratch)),
                ]
            )
        wanted += [[SPARE_PLACE, 0, 0, 1, 1, 2, 0, 0, 0, *[SPARE_SLOT] * num_scratch]] * (size - count)
        columns = np.array(read(stage, layout.columns, (9 + num_scratch) * size, np.int64)).reshape(-1, size)
        assert columns.T.tolist() == wanted

        lengths = [row[2] for row in wanted[:count]]
        batch = attention([topk] * count, lengths, is_causal=False)
        assert read(stage, layout.q_indptr, count + 1) == batch.q_indptr.tolist()
        assert read(stage, layout.prefix_len, count) == lengths
        indptr = read(stage, layout.page_indptr, count + 1)
        lists = [pages(case, place, length + num_scratch) for place, length in zip(places, lengths, strict=True)]
        assert listed(stage, indptr) == lists
        assert grown.is_noised == any(wishes.temperature[rows.seats[places]] > 0)
        assert grown.stop == at.start + (0 if shares else 4 * sum(map(len, lists)))
        assert variant == choose_rows(ROOM.rule, batch)
        check_units(stage, layout, batch, variant)


def test_a_survey_finds_the_one_tree_that_all_ask_for() -> None:
    case = random_case(np.random.default_rng(3))
    rows, capacity, count = case.rows, case.capacity.copy(), len(case.rows.seats)
    shapes = np.array([[5], [4], [16], [0]]).repeat(count, axis=1)
    shapes[3] = np.arange(count)
    assert survey(shapes, capacity, rows, 64) == Survey(count, (5, 4, 16, 64))
    tight = capacity.copy()
    tight[rows.seats] = rows.base_len + rows.num_rows + 7
    assert survey(shapes, tight, rows, 64) == Survey(count, (5, 4, 16, 7))
    tight[rows.seats[0]] += 1
    assert survey(shapes, tight, rows, 64) == Survey(count, None)
    for row, number in ((0, 3), (1, 1), (2, 8)):
        other = shapes.copy()
        other[row, -1] = number
        assert survey(other, capacity, rows, 64) == Survey(count, None)
    shapes[0, 0] = 0
    assert survey(shapes, capacity, rows, 64) == Survey(count - 1, None)


def test_what_does_not_fit_is_refused_before_it_is_written() -> None:
    case = random_case(np.random.default_rng(1))
    rows, total = case.rows, len(case.rows.tokens)
    layout, stage, at = extend_layout(total), np.zeros(STAGE, np.uint8), PageLists(MIDDLE, MIDDLE)

    def extend(
        rows: SessionRows = rows,
        layout: ExtendLayout = layout,
        at: PageLists = at,
        last: int = total,
        scratch: int = 0,
    ) -> None:
        extend_tables(stage, np.array(layout), rows, piece=Piece(0, last, scratch, True), at=at, room=ROOM)

    for broken, match in [
        (dict(layout=layout._replace(bucket=total - 1)), "do not fit a bucket"),
        (dict(last=total + 1), "do not fit a bucket"),
        (dict(layout=layout._replace(units=STAGE)), "outside its stage"),
        (dict(layout=layout._replace(max_units=1)), "room for 1 units"),
        (dict(layout=layout._replace(bucket=2**62)), "none of a stage"),
        (dict(layout=layout._replace(columns=-8)), "none of a stage"),
        (dict(scratch=-(2**40)), "scratch tokens"),
        (dict(at=PageLists(MIDDLE, STAGE)), "no room for the pages"),
        (dict(rows=rows._replace(tokens=rows.tokens[1:])), "disagree"),
        (dict(rows=rows._replace(num_rows=rows.num_rows[1:])), "disagree"),
        (dict(rows=rows._replace(num_rows=np.array([total, *-rows.num_rows[1:]]))), "disagree"),
        (dict(rows=rows._replace(base_len=rows.base_len + 2**62)), "disagree"),
    ]:
        with pytest.raises(ValueError, match=match):
            extend(**broken)
    for seats in (np.full_like(rows.seats, SEATS), np.full_like(rows.seats, -1)):
        with pytest.raises(IndexError, match="has no pages"):
            extend(rows._replace(seats=seats))
    with pytest.raises(IndexError, match="has no pages"):
        extend(rows._replace(base_len=rows.base_len + NUM_PAGES * PAGE_SIZE))
    with pytest.raises(TypeError, match="4 bytes an item"):
        extend(rows._replace(tokens=rows.tokens.astype(np.int64)))
    descending = Growth(case.wishes, np.array([1, 0]), -1, 4)
    with pytest.raises(ValueError, match="one row at least"):
        make_units(ROOM.rule, attention([3], [5], is_causal=True), 0, np.empty(40, np.int32))
    with pytest.raises(IndexError, match="ascend"):
        growth_tables(stage, np.array(growth_layout(2, 2, 2)), rows, growth=descending, at=at, room=ROOM)
