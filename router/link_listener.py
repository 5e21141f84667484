"""What links to targets and drafts tell the dispatcher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from router.adaptive import RoundReport
from router.live_request import LiveRequest
from router.peer import PeerInfo

if TYPE_CHECKING:
    from router.draft_link import DraftLink
    from router.target_link import TargetLink


class TargetListener(Protocol):
    """Called on the event loop. The requests named have left the link already."""

    def check_info(self, info: PeerInfo) -> None:
        """Raises MismatchError where the target cannot serve this router."""

    def on_ready(self, link: TargetLink) -> None:
        """A new stream stands, without requests."""

    def on_step(self, link: TargetLink, *, new_tokens: int, opened: bool) -> None:
        """A step's message was worked in; link.load and link.ledger are up to date.

        opened: the target may take more than before.
        """

    def on_rounds(self, link: TargetLink, rounds: Sequence[RoundReport]) -> None:
        """How rounds of the link's requests went; requests that end in the same message have not ended yet."""

    def on_end(self, live: LiveRequest) -> None:
        """Its outcome is set."""

    def on_return(self, link: TargetLink, live: LiveRequest, reason: str) -> None:
        """It needs another attempt: returned, or its deltas left a gap."""

    def on_lost(self, link: TargetLink, lives: list[LiveRequest]) -> None:
        """The stream ended under these requests, oldest first; empty where it never stood."""


class DraftListener(Protocol):
    """Called on the event loop."""

    def on_draft_changed(self, link: DraftLink) -> None:
        """The draft came, went, or began to drain."""
