"""Committer: what a step decided becomes tokens, lengths, moves and ends of the requests."""

from __future__ import annotations

from engine.plan import compaction
from kernels.ops import WalkResult
from target_service.request_desk import RequestDesk
from target_service.sequence import Sequence
from target_service.speculation_stats import AcceptanceWindow
from target_service.step_plan import PlannedStep


class Committer:
    """Engine thread only. Everything is per request; the tokens of a round are taken one by one at a stop check."""

    def __init__(self, requests: RequestDesk, *, window: AcceptanceWindow) -> None:
        self._requests = requests
        self._window = window

    def commit(self, planned: PlannedStep, walk: WalkResult, *, step: int) -> int:
        """Returns the number of tokens emitted. A request that ends is gone when this returns.

        A plan's first rows are its trees, so that a node of theirs and its row have the same number.
        """
        indptr = planned.plan.trees.node_indptr.tolist()
        token_ids = walk.verified_id.tolist()
        emitted = 0
        at = 0
        for turn, accepted, first_node in zip(planned.trees, walk.accept_length.tolist(), indptr, strict=False):
            seq, stop = turn.seq, at + accepted + 1
            seq.last_step = step
            seq.stats.count(num_nodes=turn.tree.num_nodes, accept_length=accepted, late=turn.late)
            if turn.tree.num_nodes > 1:
                self._window.add(accepted)
            seq.path_base, seq.path_rows = seq.committed_len, walk.accepted_indices[at:stop]
            if accepted:
                path = seq.path_rows - first_node
                src, dst = compaction(seq.table, seq.committed_len, path)
                seq.moves = (src, dst) if len(src) else None
            seq.committed_len += accepted + 1
            emitted += self._append(seq, token_ids[at:stop])
            at = stop
        for chunk in planned.chunks:
            chunk.seq.committed_len = chunk.stop
            chunk.seq.path_rows = None
        for chunk in planned.last_chunks:
            chunk.seq.last_step = step
            emitted += self._append(chunk.seq, token_ids[at : at + 1])
            at += 1
        return emitted

    def _append(self, seq: Sequence, token_ids: list[int]) -> int:
        offset = seq.num_emitted
        appended = seq.append(token_ids)
        self._requests.batch(seq.key.stream).add_tokens(seq.key.request, offset, appended.kept)
        if appended.finish is not None:
            self._requests.finish(seq.key, appended.finish)
        return len(appended.kept)
