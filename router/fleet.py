"""The targets and drafts that a router knows, and their views for placement."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from router.draft_link import DraftLink
from router.placement import DraftView, TargetView, mismatch
from router.request import Limits
from router.target_link import TargetLink


@dataclass(slots=True)
class Fleet:
    """Links to all of them, and how many of this router's requests name each draft."""

    targets: Sequence[TargetLink]
    drafts: Sequence[DraftLink]
    tokenizer_vocab_size: int
    requests_by_draft: Counter[str]

    async def run(self) -> None:
        """Keeps every link up until cancelled; an error of our own in one ends all."""
        async with asyncio.TaskGroup() as group:
            for target in self.targets:
                group.create_task(target.run(), name=f"link to target {target.address}")
            for draft in self.drafts:
                group.create_task(draft.run(), name=f"link to draft {draft.address}")

    async def contacted(self, timeout_s: float) -> None:
        """Returns once every link has been tried, or after timeout_s."""
        events = [link.contacted for link in self.targets] + [link.contacted for link in self.drafts]
        tries = [asyncio.ensure_future(event.wait()) for event in events]
        _, late = await asyncio.wait(tries, timeout=timeout_s)
        for waiter in late:
            waiter.cancel()

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
        return Limits(
            vocab_size=max((info.vocab_size for info in infos), default=self.tokenizer_vocab_size),
            context_length=max((info.context_length for info in infos), default=0),
        )

    def draft_mismatch(self, link: DraftLink) -> str:
        """Why a draft serves none of the connected targets; "" where it may serve one."""
        heads = [target.info.head for target in self.targets if target.info is not None]
        return mismatch(link.info.head, heads) if link.info is not None else ""

    def target_messages(self) -> str:
        """Why each target is not ready, for an error's message."""
        return "; ".join(f"{link.address}: {_state(link)}" for link in self.targets)


def _state(link: TargetLink) -> str:
    return link.message or ("draining" if link.load.draining else "ready")
