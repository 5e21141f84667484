"""Every page is free or held exactly once, and a failed reservation changes nothing."""

import random

import numpy as np
import pytest

from engine.pages import OutOfPagesError, PageAllocator, PageTable, pages_for


def test_pages_round_up():
    assert [pages_for(n, 16) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]


def test_fresh_pages_come_in_ascending_order():
    allocator = PageAllocator(8, 16)
    assert allocator.alloc(3) == [0, 1, 2]
    assert allocator.alloc(2) == [3, 4]


def test_asking_for_too_many_pages_takes_none():
    allocator = PageAllocator(4, 16)
    allocator.alloc(3)
    with pytest.raises(OutOfPagesError, match="2 KV pages were asked for and 1 of 4 are free"):
        allocator.alloc(2)
    assert allocator.num_free == 1
    allocator.check()


def test_a_double_free_is_our_own_bug():
    allocator = PageAllocator(4, 16)
    pages = allocator.alloc(2)
    allocator.free(pages)
    with pytest.raises(AssertionError, match="freed twice"):
        allocator.free(pages)


def test_a_table_grows_to_hold_its_tokens_and_never_shrinks():
    table = PageTable(PageAllocator(8, 4))
    table.reserve(5)
    assert table.capacity == 8
    table.reserve(3)
    assert table.capacity == 8
    assert len(table.pages) == 2


def test_a_failed_reservation_leaves_the_table_as_it_was():
    allocator = PageAllocator(3, 4)
    table = PageTable(allocator)
    table.reserve(8)
    before = list(table.pages)
    with pytest.raises(OutOfPagesError):
        table.reserve(17)
    assert table.pages == before
    assert allocator.num_free == 1


def test_slots_follow_the_pages_across_a_gap():
    allocator = PageAllocator(8, 4)
    table, other = PageTable(allocator), PageTable(allocator)
    table.reserve(4)
    other.reserve(4)
    table.reserve(8)
    assert table.pages == [0, 2]
    slots = table.slots(2, 7)
    assert slots.dtype == np.int64
    assert slots.tolist() == [2, 3, 8, 9, 10]
    assert table.slots(3, 3).tolist() == []


def test_closing_a_table_twice_frees_its_pages_once():
    allocator = PageAllocator(4, 4)
    table = PageTable(allocator)
    table.reserve(9)
    table.close()
    table.close()
    assert (allocator.num_free, table.capacity) == (4, 0)
    allocator.check()


def test_a_thousand_random_reservations_and_closes_lose_no_page():
    rng = random.Random(0)
    allocator = PageAllocator(64, 4)
    tables: list[PageTable] = []
    for _ in range(1000):
        if tables and rng.random() < 0.4:
            tables.pop(rng.randrange(len(tables))).close()
        else:
            table = PageTable(allocator)
            try:
                table.reserve(rng.randrange(1, 40))
            except OutOfPagesError:
                assert table.pages == []
            tables.append(table)
        allocator.check()
        held = [page for table in tables for page in table.pages]
        assert len(set(held)) == len(held) == allocator.num_pages - allocator.num_free
    for table in tables:
        table.close()
    assert allocator.num_free == 64
