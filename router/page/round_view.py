"""One session of a round as the page draws it: the tree, the path that was accepted, the rows that went on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.errors import InvalidInputError, WireError


@dataclass(frozen=True, slots=True)
class RoundColumns:
    """A round's structures, of all its sessions: columns [b] and flat ones, as on the wire.

    accept_length, accepted_indices and verified_id are None where the service that was asked does not verify.
    """

    step: int
    time_unix_ms: int
    timings_ms: dict[str, float]
    session: Sequence[int]
    round: Sequence[int]
    base_committed_len: Sequence[int]
    num_tokens: np.ndarray  # int64 [b]
    tokens: Sequence[int]  # (sum num_tokens)
    parents: Sequence[int]  # (sum num_tokens), local
    accept_length: np.ndarray | None = None  # int64 [b]
    accepted_indices: Sequence[int] | None = None  # (sum accept_length + 1), flat
    verified_id: Sequence[int] | None = None  # (sum accept_length + 1)
    kv_slots: dict[int, Sequence[int]] | None = None  # by session, of those that go on


def round_document(columns: RoundColumns, session: int | None, show: Callable[[int], str]) -> dict[str, Any]:
    """The round's sessions in short, and the tree of one: the named one, or the one with the most nodes.

    show: a token's text. Raises InvalidInputError for a session that the round does not have.
    """
    counts = columns.num_tokens
    lengths = columns.accept_length
    document: dict[str, Any] = {
        "step": columns.step,
        "time_unix_ms": columns.time_unix_ms,
        "timings_ms": columns.timings_ms,
        "session": list(columns.session),
        "round": list(columns.round),
        "num_nodes": counts.tolist(),
        "accepted": None if lengths is None else lengths.tolist(),
        "tree": None,
    }
    if not len(columns.session):
        return document
    entry = int(counts.argmax()) if session is None else _entry(columns.session, session)
    first = int(counts[:entry].sum())
    stop = first + int(counts[entry])
    tokens = columns.tokens[first:stop]
    tree: dict[str, Any] = {
        "session": columns.session[entry],
        "round": columns.round[entry],
        "base_committed_len": columns.base_committed_len[entry],
        "tokens": list(tokens),
        "texts": [show(token) for token in tokens],
        "parents": list(columns.parents[first:stop]),
    }
    if lengths is not None:
        assert columns.accepted_indices is not None and columns.verified_id is not None
        begin = int((lengths[:entry] + 1).sum())
        end = begin + int(lengths[entry]) + 1
        new_token = columns.verified_id[end - 1]
        tree["accepted"] = [row - first for row in columns.accepted_indices[begin:end]]
        tree["new_token"] = {"token": new_token, "text": show(new_token)}
    if columns.kv_slots is not None:
        tree["kv_slots"] = _runs(columns.kv_slots.get(columns.session[entry], ()))
    document["tree"] = tree
    return document


def _entry(sessions: Sequence[int], session: int) -> int:
    try:
        return list(sessions).index(session)
    except ValueError:
        raise InvalidInputError(
            f"session {session} is not in the last round; it has ended, or sat this one out"
        ) from None


def _runs(slots: Sequence[int]) -> list[list[int]]:
    """First and last of each run of neighbouring slots, in order of position."""
    array = np.asarray(slots, np.int64)
    if array.size == 0:
        return []
    starts = np.flatnonzero(np.diff(array, prepend=array[0] - 2) != 1)
    stops = np.append(starts[1:], array.size) - 1
    return np.stack([array[starts], array[stops]], axis=1).tolist()  # type: ignore[no-any-return]


def check_columns(columns: RoundColumns) -> RoundColumns:
    """The columns. Raises WireError where they disagree."""
    size, nodes = len(columns.session), int(columns.num_tokens.sum())
    fits = len(columns.round) == len(columns.base_committed_len) == len(columns.num_tokens) == size
    fits = fits and len(columns.tokens) == len(columns.parents) == nodes
    if columns.accept_length is not None:
        assert columns.accepted_indices is not None and columns.verified_id is not None
        rows = int((columns.accept_length + 1).sum())
        fits = fits and len(columns.accept_length) == size
        fits = fits and len(columns.accepted_indices) == len(columns.verified_id) == rows
    if not fits:
        raise WireError("the columns of the round disagree in length; is the service of another version?")
    return columns
