"""The targets and drafts that a router knows, and their views for placement."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence

from router.draft_link import DraftLink
from router.members import Members
from router.peer import PeerInfo
from router.placement import DraftView, TargetView, mismatch
from router.request import Limits
from router.target_link import TargetLink


class Fleet:
    """Links to all of them, and how many of this router's requests name each draft."""

    def __init__(self, targets: Members[TargetLink], drafts: Members[DraftLink], *, tokenizer_vocab_size: int) -> None:
        self._targets = targets
        self._drafts = drafts
        self._tokenizer_vocab_size = tokenizer_vocab_size
        self._limits = Limits(tokenizer_vocab_size, 0)
        self._limited_by: list[PeerInfo] = []  # of the connected targets, when limits were last asked for
        self.requests_by_draft: Counter[str] = Counter()

    @property
    def targets(self) -> Sequence[TargetLink]:
        """Those that leave included, while requests run there."""
        return self._targets.links

    @property
    def drafts(self) -> Sequence[DraftLink]:
        return self._drafts.links

    def target(self, address: str) -> TargetLink:
        """The link to a target that target_views named in this turn of the loop."""
        return self._targets.link(address)

    async def run(self) -> None:
        """Keeps every link up until cancelled; an error of our own in one ends all."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._targets.run(), name="targets")
            group.create_task(self._drafts.run(), name="drafts")

    async def contacted(self, timeout_s: float) -> None:
        """Returns once every link that the sources named at first has been tried, or after timeout_s."""
        tries = asyncio.gather(self._targets.contacted(), self._drafts.contacted())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(tries, timeout_s)

    def target_views(self) -> list[TargetView]:
        """Of the targets whose stream stands."""
        return [
            TargetView(
                address=link.address,
                ready=link.ready,
                model_fingerprint=info.model_fingerprint,
                context_length=info.context_length,
                page_size=info.page_size,
                num_pages=info.num_pages,
                free_slots=link.ledger.free_slots,
                free_pages=link.ledger.free_pages,
                running_requests=max(link.load.num_requests, link.num_flights),
                max_running_requests=info.max_running_requests,
            )
            for link in self.targets
            if (info := link.info) is not None
        ]

    def draft_views(self) -> list[DraftView]:
        """Of the drafts that can be reached."""
        return [
            DraftView(
                address=link.address,
                ready=link.ready,
                head=link.info.head,
                num_sessions=max(link.load.num_sessions, self.requests_by_draft[link.address]),
                max_sessions=link.load.max_sessions,
                busy=link.load.busy,
                busy_sessions=link.load.num_sessions,
                page_share=link.load.page_share,
                propose_ms=link.load.propose_ms,
            )
            for link in self.drafts
            if link.info is not None
        ]

    def limits(self) -> Limits:
        """Of the largest connected target; before there is one, those of the tokenizer."""
        infos = [link.info for link in self.targets if link.info is not None]
        if infos != self._limited_by:
            self._limited_by = infos
            self._limits = Limits(
                vocab_size=max((info.vocab_size for info in infos), default=self._tokenizer_vocab_size),
                context_length=max((info.context_length for info in infos), default=0),
            )
        return self._limits

    def draft_mismatch(self, link: DraftLink) -> str:
        """Why a draft serves none of the connected targets; "" where it may serve one."""
        heads = [target.info.head for target in self.targets if target.info is not None]
        return mismatch(link.info.head, heads) if link.info is not None else ""

    def target_messages(self) -> str:
        """Why each target is not ready, for an error's message."""
        return "; ".join(f"{link.address}: {link.why_not_ready or 'ready'}" for link in self.targets) or "none is named"
