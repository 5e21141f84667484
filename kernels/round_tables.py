"""The integer tables of a step, written by one call of C each where they wait for their copy to the device.

A stage is uint8 on the host. A layout says at which byte of it each section begins; sections are int32 but for the
columns and ``ancestors``, which are int64. Every function raises ValueError or IndexError, in place of writing past the
stage, where the arrays disagree with each other or with the layout. That sections lie apart is the layout's to see to.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

from kernels.extension import EXTENSION, MISSING
from kernels.ops import AttentionBatch

NUM_EXTEND_COLUMNS = 5  # tokens, positions, slots, last rows, their places
NUM_GROWTH_COLUMNS = 9  # place, root, committed_len, num_steps, topk, num_nodes, seed, temperature, min_score


class LoadLayout(NamedTuple):
    """Of an AttentionBatch as it is."""

    counts: int  # units, rows, requests
    q_indptr: int
    prefix_len: int
    local_len: int
    is_causal: int
    page_indptr: int
    units: int
    ancestors: int
    page_ids: int
    max_units: int  # a number


class ExtendLayout(NamedTuple):
    """Of committed rows. Lists of pages lie elsewhere in the stage."""

    bucket: int  # a number: rows, and pieces
    columns: int  # [NUM_EXTEND_COLUMNS, bucket]
    counts: int
    q_indptr: int
    prefix_len: int
    local_len: int
    page_indptr: int
    units: int
    max_units: int  # a number


class GrowthLayout(NamedTuple):
    """Of trees that grow. Lists of pages lie elsewhere in the stage."""

    num_sessions: int  # a number
    topk: int  # a number
    num_scratch: int  # a number
    columns: int  # [NUM_GROWTH_COLUMNS + num_scratch, num_sessions]
    counts: int
    q_indptr: int
    prefix_len: int
    page_indptr: int
    units: int
    max_units: int  # a number


class SessionRows(NamedTuple):
    """New rows of b sessions, flat in their order, and where the sessions' pages are listed."""

    page_ids: np.ndarray  # int32 [seats, pages], in order of position
    seats: np.ndarray  # int64 [b]
    base_len: np.ndarray  # int64 [b]
    num_rows: np.ndarray  # int64 [b], at least 1
    tokens: np.ndarray  # int32 [rows]
    page_size: int


class Wishes(NamedTuple):
    """What the trees of b sessions are to be."""

    shapes: np.ndarray  # int64 [4, b]: num_steps, topk, num_nodes, min_path_permille
    seed: np.ndarray  # uint64 [seats]
    temperature: np.ndarray  # fp64 [seats]
    min_scores: np.ndarray  # fp64 [1000], by permille


class PageLists(NamedTuple):
    """Bytes of the stage. base: what page_indptr counts from; start: where the lists begin."""

    base: int
    start: int


class Room(NamedTuple):
    """Of a forward. rule: UnitRule.numbers; the spare slot and place are what padding reads and writes."""

    rule: np.ndarray
    spare_slot: int
    spare_place: int


class Piece(NamedTuple):
    """Rows [first, last) of all sessions together. scratch: tokens past each session's rows whose pages are listed;
    keeps_hidden: whether a session's last row goes to the session's place, and not to the spare one."""

    first: int
    last: int
    scratch: int
    keeps_hidden: bool


class Growth(NamedTuple):
    """Which sessions grow. page_indptr: the byte of a section whose lists of pages serve, of the same sessions; -1:
    they are listed anew."""

    wishes: Wishes
    places: np.ndarray  # int64, ascending: among the b
    page_indptr: int
    variant: int  # of attention


class Filled(NamedTuple):
    """variant: of attention; stop: the byte behind the lists of pages."""

    variant: int
    stop: int


class Grown(NamedTuple):
    """is_noised: whether a session samples; stop: the byte behind the lists of pages."""

    is_noised: bool
    stop: int


def missing_tables() -> str | None:
    """Why there is no C extension to call, and what to do; None where there is one."""
    return MISSING or None


def load_batch(stage: np.ndarray, layout: np.ndarray, rule: np.ndarray, batch: AttentionBatch, variant: int) -> int:
    """MUTATES the stage. layout: a LoadLayout, int64. variant 0: the fastest for the batch. Returns the variant."""
    chosen: int = EXTENSION.load_batch(
        stage,
        layout,
        rule,
        variant,
        batch.batch_invariant,
        batch.q_indptr,
        batch.prefix_len,
        batch.local_len,
        batch.is_causal,
        batch.page_indptr,
        batch.ancestors,
        batch.page_ids,
    )
    return chosen


def choose_rows(rule: np.ndarray, batch: AttentionBatch) -> int:
    """Rows a tile: the smaller, unless its tiles would read more than wide_gain times the KV of the larger's."""
    columns = batch.q_indptr, batch.prefix_len, batch.local_len, batch.is_causal
    chosen: int = EXTENSION.choose_rows(rule, *columns, batch.batch_invariant)
    return chosen


def make_units(rule: np.ndarray, batch: AttentionBatch, tile_rows: int, table: np.ndarray) -> tuple[int, int]:
    """MUTATES the table, int32 [4 * units]. Returns how many units there are, and the splits of split tiles."""
    columns = batch.q_indptr, batch.prefix_len, batch.local_len, batch.is_causal
    counts: tuple[int, int] = EXTENSION.make_units(rule, *columns, batch.batch_invariant, tile_rows, table)
    return counts


def extend_tables(
    stage: np.ndarray, layout: np.ndarray, rows: SessionRows, *, piece: Piece, at: PageLists, room: Room
) -> Filled:
    """MUTATES the stage: one causal forward of a piece of the rows. layout: an ExtendLayout, int64."""
    return Filled(
        *EXTENSION.extend_tables(stage, layout, room.rule, *rows, *at, *piece, room.spare_slot, room.spare_place)
    )


def growth_tables(
    stage: np.ndarray, layout: np.ndarray, rows: SessionRows, *, growth: Growth, at: PageLists, room: Room
) -> Grown:
    """MUTATES the stage: trees that are to grow behind these rows. layout: a GrowthLayout, int64."""
    *columns, page_size = rows
    wishes, places, page_indptr, variant = growth
    return Grown(
        *EXTENSION.growth_tables(
            stage,
            layout,
            room.rule,
            *columns,
            *wishes,
            places,
            page_size,
            *at,
            room.spare_slot,
            room.spare_place,
            page_indptr,
            variant,
        )
    )


def copy_buffer(stage: np.ndarray, at: int, data: bytes | bytearray | memoryview) -> int:
    """MUTATES the stage from byte ``at`` on. Returns the byte behind what was copied."""
    stop: int = EXTENSION.copy_buffer(stage, at, data)
    return stop


def copy_tensor(stage: np.ndarray, at: int, tensor: Tensor) -> int:
    """MUTATES the stage from byte ``at`` on: a contiguous tensor on the host. Returns the byte behind it."""
    stop: int = EXTENSION.copy_bytes(stage, at, tensor.data_ptr(), tensor.nbytes)
    return stop
