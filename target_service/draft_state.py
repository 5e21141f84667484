"""DraftState: one draft as the engine thread sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from target_service.patience import Patience
from target_service.sequence import Sequence


@dataclass(slots=True)
class DraftState:
    """Engine thread only. Sessions live as long as the connection of ``epoch``."""

    epoch: int = 0
    connected: bool = False
    lost: bool = False  # a connection ended, or none could be made; not while the first is being made
    draining: bool = False
    sessions: dict[int, Sequence] = field(default_factory=dict)
    num_dropped: int = 0  # sessions that ended with the connection, until its loss is reported
    sync_inflight: int = 0
    heard_at_s: float = 0.0  # when it answered last
    synced_at_s: float = 0.0  # when rows last went by Sync
    open_after_s: float = 0.0  # no session is opened before
    patience: Patience = field(default_factory=Patience)

    def connect(self, epoch: int, now_s: float) -> None:
        """A new connection: nothing is under way on it, and what the last one was like counts no more."""
        self.epoch = epoch
        self.connected = True
        self.lost = False
        self.draining = False
        self.num_dropped = 0
        self.sync_inflight = 0
        self.heard_at_s = now_s
        self.open_after_s = now_s
        self.patience = Patience()

    def lose(self) -> None:
        """The connection is over, or could not be made."""
        self.connected = False
        self.lost = True

    def overdue(self, time_s: float) -> list[Sequence]:
        """Requests whose session has been without an answer since then."""
        return [seq for seq in self.sessions.values() if seq.draft is not None and seq.draft.is_due_since(time_s)]
