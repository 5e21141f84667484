"""Committer: what a step decided becomes tokens, lengths, moves and ends of the requests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.ops import WalkResult
from paceline.types import FinishReason
from target_service.request_desk import RequestDesk
from target_service.sequence_table import Moves, SequenceTable
from target_service.speculation_stats import AcceptanceWindow
from target_service.step_plan import PlannedStep
from target_service.token_columns import TokenColumns


@dataclass(frozen=True, slots=True)
class Committed:
    """What a step came to."""

    num_emitted: int  # tokens
    ended: list[int]  # trees of the plan whose requests ended


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The tokens of a walk, flat, and where they belong. entry: tree of the plan; depth: 0 is the token at its root's
    successor."""

    ids: np.ndarray  # int32 [n]
    entry: np.ndarray  # int64 [n]
    depth: np.ndarray  # int64 [n]

    def __getitem__(self, kept: np.ndarray) -> _Tokens:
        return _Tokens(self.ids[kept], self.entry[kept], self.depth[kept])


class Committer:
    """Engine thread only."""

    def __init__(self, requests: RequestDesk, *, window: AcceptanceWindow) -> None:
        self._requests = requests
        self._table: SequenceTable = requests.table
        self._window = window

    def commit(self, planned: PlannedStep, walk: WalkResult, *, step: int) -> Committed:
        """Every tree's root lies at the position before its first new token, that of a prompt's last row included.

        A request that ends is gone when this returns. A plan's first rows are its trees, so that a node of theirs and
        its row have the same number.
        """
        table, rows = self._table, planned.rows
        trees = planned.plan.trees
        roots = trees.node_indptr[:-1]
        base = trees.positions[roots].astype(np.int64)
        counts = walk.accept_length.astype(np.int64) + 1
        entry = np.repeat(np.arange(len(rows)), counts)
        starts = np.cumsum(counts) - counts
        tokens = _Tokens(walk.verified_id, entry, np.arange(len(entry)) - starts[entry])
        if len(entry) > len(rows):
            table.moves = _moves(table, rows, base, walk.accepted_indices - roots[entry], tokens)
        kept, ends = self._ends(rows, base, counts, tokens)
        if ends:
            tokens = tokens[tokens.depth < kept[entry]]
        table.tokens[rows[tokens.entry], base[tokens.entry] + 1 + tokens.depth] = tokens.ids
        table.committed_len[rows] = base + counts
        table.last_step[rows] = step
        table.rounds[rows[: planned.num_decoding]] += 1
        self._note_speculation(planned, walk, base=base, starts=starts, step=step)
        for chunk in planned.due.chunks:
            if chunk.is_last:
                self._requests.begin_decoding(chunk.seq)
            else:
                chunk.seq.committed_len = chunk.stop
        self._emit(rows, base, kept, tokens.ids)
        for number, reason in ends.items():
            self._requests.finish(planned.seqs[number].key, reason)
        return Committed(len(tokens.ids), list(ends))

    def _ends(
        self, rows: np.ndarray, base: np.ndarray, counts: np.ndarray, tokens: _Tokens
    ) -> tuple[np.ndarray, dict[int, FinishReason]]:
        """How many tokens of each tree are kept, and which requests end: at the first stop token or at the limit.

        A stop token at the last allowed place is a stop.
        """
        allowed = self._table.limit[rows] - 1 - base
        stops = np.flatnonzero(self._table.stops_at(rows[tokens.entry], tokens.ids))
        full = np.flatnonzero(counts >= allowed)
        if not len(stops) and not len(full):
            return counts, {}
        kept = np.minimum(counts, allowed)
        ends = dict.fromkeys(full.tolist(), FinishReason.LENGTH)
        for number, depth in zip(tokens.entry[stops].tolist(), tokens.depth[stops].tolist(), strict=True):
            if depth < kept[number] and ends.get(number) is not FinishReason.STOP:
                ends[number] = FinishReason.STOP
                kept[number] = depth + 1
        return kept, ends

    def _note_speculation(
        self, planned: PlannedStep, walk: WalkResult, *, base: np.ndarray, starts: np.ndarray, step: int
    ) -> None:
        """Which rows of the step each drafted request committed, and how far its tree was right."""
        num_speculating = planned.num_speculating
        if num_speculating == 0:
            return
        accepted = walk.accept_length[:num_speculating].tolist()
        columns = zip(planned.seqs, base.tolist(), starts.tolist(), accepted, strict=False)
        for seq, path_base, start, accept_length in columns:
            seq.path_step, seq.path_base = step, path_base
            seq.path_rows = walk.accepted_indices[start : start + accept_length + 1]
        in_trees: list[int] = []
        for turn, accept_length in zip(planned.due.trees, accepted, strict=False):
            if turn.tree.num_nodes > 1:
                turn.seq.stats.count(num_nodes=turn.tree.num_nodes, accept_length=accept_length)
                in_trees.append(accept_length)
        self._window.extend(in_trees)
        for seq in planned.late:
            seq.stats.late_rounds += 1

    def _emit(self, rows: np.ndarray, base: np.ndarray, counts: np.ndarray, token_ids: np.ndarray) -> None:
        if not len(rows):
            return
        table, streams = self._table, self._table.stream[rows]
        offsets = base + 1 - table.prompt_len[rows]
        everything = TokenColumns(table.request[rows], offsets, counts, token_ids)
        first = int(streams[0])
        if (streams == first).all():
            self._requests.batch(first).deltas.append(everything)
            return
        for stream in np.unique(streams).tolist():
            self._requests.batch(stream).deltas.append(everything.of(streams == stream))


def _moves(table: SequenceTable, rows: np.ndarray, base: np.ndarray, path: np.ndarray, tokens: _Tokens) -> Moves:
    """path: int [n], the local node of each token's parent; node path[i] belongs at its depth."""
    moved = np.flatnonzero(path != tokens.depth)
    entry = tokens.entry[moved]
    of, start = rows[entry], base[entry]
    src = table.slots_at(of, start + path[moved])
    return Moves(of, src, table.slots_at(of, start + tokens.depth[moved]))
