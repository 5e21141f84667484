"""A round's live structures as text: trees with the accepted path marked, rows, KV slots, timings."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import numpy as np

from client.vocabulary import Vocabulary
from paceline.errors import WireError
from paceline.round_codec import decode_verify
from paceline.tree import DraftTree
from paceline.v1 import verify_pb2

_ACCEPTED = "*"


def round_text(view: verify_pb2.RoundView, vocabulary: Vocabulary) -> str:
    """Raises WireError where the view's columns disagree."""
    if not view.step:
        return "no round yet"
    time = datetime.fromtimestamp(view.time_unix_ms / 1e3).strftime("%H:%M:%S.%f")[:-3]
    timings = "  ".join(f"{name} {value:.2f} ms" for name, value in sorted(view.timings_ms.items()))
    lines = [f"step {view.step} at {time}", f"timings: {timings or 'none'}"]
    if view.verify_input.session:
        lines += ["", *_verify_lines(view, vocabulary)]
    if view.extend_input.session:
        lines += ["", *_extend_lines(view.extend_input, vocabulary)]
    return "\n".join(lines)


def tree_lines(tree: DraftTree, accepted: frozenset[int], vocabulary: Vocabulary) -> list[str]:
    """One line a node, children below their parent, accepted nodes marked."""
    children: list[list[int]] = [[] for _ in range(tree.num_nodes)]
    for node in range(1, tree.num_nodes):
        children[tree.parents[node]].append(node)
    lines: list[str] = []

    def draw(node: int, branch: str, below: str) -> None:
        mark = _ACCEPTED if node in accepted else " "
        lines.append(f"{mark} {branch}{vocabulary.show(int(tree.tokens[node]))}")
        for child in children[node]:
            last = child == children[node][-1]
            draw(child, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  "))

    draw(0, "", "")
    return lines


def slot_ranges(slots: Sequence[int]) -> str:
    """``0-15 32-40``: runs of neighbouring slots in order of position."""
    array = np.asarray(slots, np.int64)
    if array.size == 0:
        return "none"
    starts = np.flatnonzero(np.diff(array, prepend=array[0] - 2) != 1)
    stops = np.append(starts[1:], array.size) - 1
    runs = zip(array[starts].tolist(), array[stops].tolist(), strict=True)
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _verify_lines(view: verify_pb2.RoundView, vocabulary: Vocabulary) -> list[str]:
    columns = decode_verify(view.verify_input)
    lines = [f"verify_input: {len(columns.session)} request(s), {len(columns.draft_token)} nodes"]
    walks = _walks(view.verify_output, columns.num_tokens) if view.HasField("verify_output") else None
    for i, tree in enumerate(columns.trees()):
        accepted, new_token = walks[i] if walks else (frozenset[int](), None)
        line = f"session {columns.session[i]}, round {columns.round[i]}: {columns.base_committed_len[i]} committed"
        line += f", {tree.num_nodes} nodes"
        if new_token is not None:
            line += f", {len(accepted) - 1} accepted, then {vocabulary.show(new_token)}"
        lines += [line, *("  " + text for text in tree_lines(tree, accepted, vocabulary))]
    return lines


def _walks(output: verify_pb2.VerifyOutput, num_nodes: np.ndarray) -> list[tuple[frozenset[int], int]]:
    """Of each request the accepted nodes, root included, and the new token."""
    lengths = np.asarray(output.accept_length, np.int64) + 1
    total = int(lengths.sum())
    if len(lengths) != len(num_nodes) or total != len(output.accepted_indices) or total != len(output.verified_id):
        raise WireError("verify_output does not fit verify_input: their requests or lengths differ")
    stops, first_nodes = np.cumsum(lengths), np.cumsum(num_nodes) - num_nodes
    rows = np.asarray(output.accepted_indices, np.int64)
    walks = []
    for length, stop, first in zip(lengths.tolist(), stops.tolist(), first_nodes.tolist(), strict=True):
        walks.append((frozenset((rows[stop - length : stop] - first).tolist()), output.verified_id[stop - 1]))
    return walks


def _extend_lines(extend: verify_pb2.ExtendInput, vocabulary: Vocabulary) -> list[str]:
    """The columns of the proposal are the draft's alone; those of the KV may be left out."""
    size, num_rows = len(extend.session), len(extend.verified_id)
    columns = (extend.round, extend.base_committed_len, extend.num_tokens_per_req)
    optional = (extend.num_tokens_for_logprob_per_req, extend.num_steps, extend.eagle_topk, extend.num_draft_tokens)
    fits = all(len(column) == size for column in columns) and all(len(column) in (0, size) for column in optional)
    if not fits or sum(extend.num_tokens_per_req) != num_rows or len(extend.kv_indptr) not in (0, size + 1):
        raise WireError(f"extend_input does not fit together: its columns differ in length for {size} sessions")
    lines = [f"extend_input: {size} session(s), {num_rows} rows"]
    first = 0
    for i, session in enumerate(extend.session):
        stop = first + extend.num_tokens_per_req[i]
        line = f"session {session}, round {extend.round[i]}: {stop - first} rows "
        line += f"from position {extend.base_committed_len[i]} on"
        if all(optional) and extend.num_tokens_for_logprob_per_req[i]:
            shape = (extend.num_steps[i], extend.eagle_topk[i], extend.num_draft_tokens[i])
            line += f", asks for a tree of {shape}"
        lines.append(line)
        tokens = extend.verified_id[first:stop]
        lines.append("  verified_id: " + _shown(tokens, vocabulary))
        if extend.kv_indptr:
            begin, end = extend.kv_indptr[i], extend.kv_indptr[i + 1]
            lines.append(f"  kv_indptr {begin}..{end}  kv_indices {slot_ranges(extend.kv_indices[begin:end])}")
        first = stop
    return lines


def _shown(tokens: Sequence[int], vocabulary: Vocabulary, *, most: int = 8) -> str:
    """The last few; a prompt's rows are many."""
    left_out = f"... {len(tokens) - most} more ... " if len(tokens) > most else ""
    return left_out + "  ".join(vocabulary.show(token) for token in tokens[-most:])
