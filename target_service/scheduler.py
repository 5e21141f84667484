"""What runs in the next step. Pure: sequences and clock in, a schedule out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from target_service.sequence import Sequence
from target_service.tree_nodes import first_nodes, num_nodes


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a step may become."""

    max_rows: int  # trees and chunks together
    chunked_prefill_size: int  # prompt tokens


@dataclass(frozen=True, slots=True)
class ChunkTurn:
    """Prompt positions [start, stop) of a request."""

    seq: Sequence
    start: int
    stop: int

    @property
    def is_last(self) -> bool:
        return self.stop == self.seq.prefill_len


class Schedule(NamedTuple):
    """The turns of one step; without any, until_s says when to look again if no event comes (None: not at all)."""

    drafted: list[Sequence]  # in decode
    trees: list[bytes]  # what the drafts of these proposed, see ``tree_nodes``
    missing: list[Sequence]  # these speculate, and verify one node: no tree is there
    plain: list[Sequence]  # one node each
    chunks: list[ChunkTurn]
    until_s: float | None = None
    is_ahead: bool = False  # behind a step of the same requests, whose tokens nobody knows yet

    @property
    def is_empty(self) -> bool:
        return not (self.drafted or self.missing or self.plain or self.chunks)


def _never() -> bool:
    return False


class Moment(NamedTuple):
    """When a step is looked for."""

    now_s: float
    num_decoding: int
    join_rounds: Callable[[], bool] = _never  # prompts and undrafted requests join the step of the trees on their way
    is_split: bool = False  # trees of the two halves are verified apart
    is_busy: bool = False  # a step is under way: behind it go trees of the other half, or ``schedule_ahead``'s


def nothing(until_s: float | None = None) -> Schedule:
    """No step."""
    return Schedule([], [], [], [], [], until_s)


def schedule(sequences: Iterable[Sequence], limits: Limits, moment: Moment) -> Schedule:
    """Sequences in order of arrival.

    A request that a step under way has is left out, and one whose tree is on its way. Trees that are there wait for
    those that are not, up to the first deadline, unless prompts or undrafted requests keep the model busy anyway; with
    join_rounds these wait, too, until a tree is late. Split, trees wait for those of their own half alone, and the two
    halves take turns. Each decoding request gets one row, prompts what is left up to their limit, and trees the
    rest: one that does not fit is cut.
    Past max_rows requests, those that waited longest go first. MUTATES sessions: a tree that takes part is taken, and
    so is one of a request that does not speculate any more.
    """
    now_s = moment.now_s
    ready: list[Sequence] = []  # a tree is there
    missing: list[Sequence] = []  # none came in time, or none was asked for yet
    plain: list[Sequence] = []
    prompts: list[Sequence] = []
    until_s: float | None = None
    open_halves: set[int] = set()  # trees of theirs are on their way, or in the step under way
    is_late = False
    for seq in sequences:
        session = seq.draft
        if seq.is_running:
            if _speculates(seq, moment):
                open_halves.add(seq.half)
            continue
        if not seq.is_decoding:
            prompts.append(seq)
        elif session is None:
            plain.append(seq)
        elif seq.decision.shape_for(moment.num_decoding) is None:
            session.tree = None
            plain.append(seq)
        elif session.tree is not None:
            ready.append(seq)
        elif session.is_waiting(now_s) or (moment.is_busy and session.is_asking):
            until_s = session.deadline_s if until_s is None else min(until_s, session.deadline_s)
            open_halves.add(seq.half)
        else:
            missing.append(seq)
            is_late |= session.is_asking
    half = _whole_half(ready, open_halves) if moment.is_split else []
    if half:
        ready = half
    elif moment.is_busy:
        return nothing(until_s)
    elif until_s is not None:
        is_idle = not missing and not plain and not prompts
        if is_idle or (not is_late and moment.join_rounds()):
            return nothing(until_s)

    num_roots = len(ready) + len(missing) + len(plain)
    if num_roots > limits.max_rows:
        first = sorted(ready + missing + plain, key=lambda seq: seq.last_step)[: limits.max_rows]
        chosen = {seq.key for seq in first}
        ready, missing, plain = ([seq for seq in part if seq.key in chosen] for part in (ready, missing, plain))
        num_roots = limits.max_rows
    spare = limits.max_rows - num_roots
    chunks: list[ChunkTurn] = []
    if prompts:
        chunks = _chunks(prompts, min(spare, limits.chunked_prefill_size))
        spare -= sum(chunk.stop - chunk.start for chunk in chunks)
    return Schedule(ready, _trees(ready, spare), missing, plain, chunks)


def schedule_ahead(sequences: Iterable[Sequence], limits: Limits, moment: Moment) -> Schedule:
    """The step behind one under way that verifies no tree: its requests go on by one token, or by the next part of
    their prompt, before anyone knows what it draws.

    Nothing where a decoding request speculates, for a draft is asked between two steps. A request that is going to be
    full is left out, and so is one whose prompt ends and that is going to speculate.
    """
    plain: list[Sequence] = []
    prompts: list[Sequence] = []
    for seq in sequences:
        planned_len = seq.planned_len
        speculates = _speculates(seq, moment)
        if planned_len < seq.prefill_len:
            prompts.append(seq)
        elif speculates and seq.is_decoding:
            return nothing()
        elif not speculates and planned_len + 1 < seq.limit:
            if seq.draft is not None:
                seq.draft.tree = None
            plain.append(seq)
    if len(plain) > limits.max_rows:
        plain = sorted(plain, key=lambda seq: seq.last_step)[: limits.max_rows]
    spare = limits.max_rows - len(plain)
    return Schedule([], [], [], plain, _chunks(prompts, min(spare, limits.chunked_prefill_size)), is_ahead=True)


def _speculates(seq: Sequence, moment: Moment) -> bool:
    """Once its prompt is done it is to have a tree, and there is a draft for it."""
    return seq.draft is not None and seq.decision.shape_for(moment.num_decoding) is not None


def _whole_half(ready: list[Sequence], open_halves: set[int]) -> list[Sequence]:
    """The trees of the half of which all are there; of two such, the one whose turn it is. Empty without one.

    A newcomer whose half is under way waits for the rest of it: alone it would cost a step.
    """
    whole = [seq for seq in ready if seq.half not in open_halves]
    if not whole:
        return whole
    half = min(whole, key=lambda seq: seq.last_step).half
    return [seq for seq in whole if seq.half == half]


def _chunks(prompts: list[Sequence], num_tokens: int) -> list[ChunkTurn]:
    chunks: list[ChunkTurn] = []
    for seq in prompts:
        if num_tokens == 0:
            break
        start = seq.planned_len
        stop = min(seq.prefill_len, start + num_tokens)
        num_tokens -= stop - start
        chunks.append(ChunkTurn(seq, start, stop))
    return chunks


def _trees(ready: list[Sequence], spare: int) -> list[bytes]:
    """spare: rows for nodes other than roots."""
    trees: list[bytes] = []
    for seq in ready:
        assert seq.draft is not None
        tree = seq.draft.take_tree()
        assert tree is not None
        size = num_nodes(tree)
        if size > 1 + spare:
            tree, size = first_nodes(tree, 1 + spare), 1 + spare
        spare -= size - 1
        trees.append(tree)
    return trees
