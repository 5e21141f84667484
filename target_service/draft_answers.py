"""DraftAnswers: what the drafts answered, brought to the sessions that asked."""

from __future__ import annotations

from target_service.draft_desk import DraftDesk
from target_service.draft_session import TreeVerdict
from target_service.draft_state import DraftState
from target_service.events import RowsSynced, SessionAnswer, SessionCode, SessionsAnswered, TreesArrived
from target_service.metrics import TargetMetrics
from target_service.sequence import Sequence

_NOWHERE = -1  # a length at which no tree is of use


class DraftAnswers:
    """Engine thread only; the clock comes in as now_s. What comes by a connection that is over, or for a session that
    is gone, is dropped."""

    def __init__(self, desk: DraftDesk, metrics: TargetMetrics) -> None:
        self._desk = desk
        self._metrics = metrics
        self._verdicts: list[TreeVerdict] = []  # not counted yet

    def on_trees(self, event: TreesArrived, now_s: float) -> None:
        """Trees that do not fit what was asked are dropped and counted."""
        state = self._desk.living(event.at)
        if state is None:
            return
        state.heard_at_s = now_s
        verdicts = self._verdicts
        used: list[bool] = []  # of the trees of requests that are still here
        for number, arrived in zip(event.sessions, event.trees, strict=True):
            seq = state.sessions.get(number)
            if seq is None or seq.draft is None:
                verdicts.append(TreeVerdict.LATE)
                continue
            committed_len = seq.committed_len
            root_token = seq.table.tokens.item(seq.row, committed_len)
            if seq.is_running:  # without this tree
                committed_len = _NOWHERE
            verdict = seq.draft.on_tree(arrived, committed_len=committed_len, root_token=root_token)
            verdicts.append(verdict)
            used.append(verdict is TreeVerdict.USED)
            if verdict is TreeVerdict.USED:
                seq.draft.answered_at_s = now_s
            elif verdict is TreeVerdict.LATE and arrived.round == seq.draft.round:
                self._metrics.late_tree(max(0.0, now_s - seq.draft.deadline_s))
        if used:
            state.patience.note(in_time=sum(used) / len(used))

    def count_trees(self) -> None:
        """Those that came since the last call. When nobody waits: a metric takes as long as the tree did."""
        if self._verdicts:
            self._metrics.trees(self._verdicts)
            self._verdicts.clear()

    def on_answers(self, event: SessionsAnswered, now_s: float) -> None:
        state = self._desk.living(event.at)
        if state is None:
            return
        state.heard_at_s = now_s
        for answer in event.answers:
            seq = state.sessions.get(answer.session)
            if seq is not None and seq.draft is not None:
                self._on_answer(state, seq, answer, now_s)

    def on_synced(self, event: RowsSynced, now_s: float) -> None:
        state = self._desk.living(event.at)
        if state is None:
            return
        state.heard_at_s = now_s
        state.sync_inflight -= 1
        seq = state.sessions.get(event.session)
        if seq is None or seq.draft is None:
            return
        seq.draft.sync_since_s = now_s
        if event.code is SessionCode.OK:
            seq.draft.on_synced(event.held_len, ok=True)
        elif event.code is SessionCode.LENGTH_DIFFERS and event.held_len <= seq.committed_len:
            seq.draft.on_synced(event.held_len, ok=False)
        else:
            self._desk.give_up(state, seq, event.code, now_s)

    def _on_answer(self, state: DraftState, seq: Sequence, answer: SessionAnswer, now_s: float) -> None:
        session = seq.draft
        assert session is not None
        if answer.code is SessionCode.OK:
            session.on_extended(answer.round, answer.held_len)
        elif answer.code is SessionCode.LENGTH_DIFFERS and answer.held_len <= seq.committed_len:
            session.on_length_differs(answer.round, answer.held_len)
        else:
            self._desk.give_up(state, seq, answer.code, now_s)
