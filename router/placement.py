"""Which target takes a request, and which draft serves it: pure choices by load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from paceline.admission import pages_to_reserve
from paceline.errors import InvalidInputError
from paceline.tree import MAX_NODES
from router.request import Limits


@dataclass(frozen=True, slots=True)
class Head:
    """What must agree between a target and a draft. Empty strings: no head."""

    fingerprint: str
    feature_id: str


@dataclass(frozen=True, slots=True)
class TargetView:
    """What placement looks at of one target. Credits are those left to this router."""

    address: str
    ready: bool
    model_fingerprint: str
    context_length: int
    page_size: int
    num_pages: int  # of its pool; 0: it did not say
    free_slots: int
    free_pages: int
    running_requests: int  # of all routers, and what this one has sent since
    max_running_requests: int


@dataclass(frozen=True, slots=True)
class DraftView:
    """What placement looks at of one draft."""

    address: str
    ready: bool
    head: Head
    num_sessions: int  # of all targets, and what this router has placed since
    max_sessions: int
    busy: float  # share of time that its model works, 0 to 1
    busy_sessions: int = 0  # that made it so busy
    page_share: float = 0.0  # of its KV pages, those in use
    propose_ms: float = 0.0  # from a batch's arrival to its trees

    def load(self, *, more: int = 0) -> float:
        """The scarcest of sessions, pages and time, as a share of what there is, with so many more sessions."""
        sessions = self.num_sessions + more
        busy = self.busy * sessions / max(1, self.busy_sessions)
        return max(sessions / max(1, self.max_sessions), self.page_share, busy)


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request asks of a target."""

    prompt_len: int
    max_tokens: int
    model_fingerprint: str = ""  # of the model that began it, where it is a replay
    avoid: str = ""  # the target that failed or returned it last


def pages_of(demand: Demand, target: TargetView) -> int:
    """Pages that the target reserves for the request. Any tree may be asked for later, so the largest counts."""
    return pages_to_reserve(
        prompt_len=demand.prompt_len,
        max_tokens=clipped_max_tokens(demand, target.context_length),
        max_nodes=MAX_NODES,
        page_size=target.page_size,
    )


def clipped_max_tokens(demand: Demand, context_length: int) -> int:
    """New tokens that fit the context."""
    return min(demand.max_tokens, context_length - demand.prompt_len)


def choose_target(targets: Iterable[TargetView], demand: Demand) -> TargetView | None:
    """The least loaded ready target whose credits cover the request; None while there is none.

    One that failed or returned the request is taken only where no other can.
    """
    fitting = [target for target in targets if serves_model(target, demand) and _covers(target, demand)]
    if len(fitting) == 1:
        return fitting[0]
    return min(fitting, key=lambda target: (target.address == demand.avoid, *_target_load(target)), default=None)


def serves_model(target: TargetView, demand: Demand) -> bool:
    """Whether the target is ready, and runs the model that began the request where it is a replay."""
    return target.ready and demand.model_fingerprint in ("", target.model_fingerprint)


def check_possible(demand: Demand, serving: Sequence[TargetView]) -> None:
    """Raises InvalidInputError where none of the targets, all of which serve the model, will ever take the request."""
    fitting = [target for target in serving if demand.prompt_len < target.context_length]
    if not fitting:
        Limits(0, max(target.context_length for target in serving)).check_prompt_len(demand.prompt_len)
    pools = [(pages_of(demand, target), target.num_pages) for target in fitting]
    if all(0 < pool < pages for pages, pool in pools):
        pages, pool = max(pools, key=lambda pair: pair[1])
        raise InvalidInputError(
            f"prompt and max_tokens ({demand.prompt_len} + {demand.max_tokens}) need {pages} pages, the largest target "
            f"has {pool}: lower max_tokens, or start targets with a larger --max-total-tokens"
        )


def choose_draft(drafts: Iterable[DraftView], head: Head, *, links: Mapping[str, bool]) -> str:
    """Address of the least loaded ready draft of the target's head, "" where there is none.

    links: whether the target's links work, by address; a broken one is taken only where no other is left.
    A full draft still counts: sessions end soon, and the target decodes plainly until then.
    """
    if not head.feature_id:
        return ""
    matching = [draft for draft in drafts if draft.ready and draft.head == head]
    best = min(matching, key=lambda draft: (not links.get(draft.address, True), *_draft_order(draft)), default=None)
    return "" if best is None else best.address


def keep_draft(current: str, drafts: Sequence[DraftView], head: Head, *, links: Mapping[str, bool]) -> str:
    """The draft that a running request goes on with: its own as long as that is ready and linked.

    Else the best that is, for the target replays its rows there; else its own, which may come back.
    """
    usable = [draft for draft in drafts if draft.ready and links.get(draft.address, True)]
    if any(draft.address == current and draft.head == head for draft in usable):
        return current
    return choose_draft(usable, head, links=links) or current


def mismatch(draft: Head, targets: Iterable[Head]) -> str:
    """Why a draft of this head serves none of the targets; "" where it serves one, or no target is known."""
    heads = [head for head in targets if head.feature_id]
    if not heads or draft in heads:
        return ""
    wanted = ", ".join(sorted({_show(head) for head in heads}))
    return f"serves head {_show(draft)}, the targets need {wanted}: start it with their --speculative-draft-model-path"


def _covers(target: TargetView, demand: Demand) -> bool:
    fits = demand.prompt_len < target.context_length
    return fits and target.free_slots > 0 and pages_of(demand, target) <= target.free_pages


def _target_load(target: TargetView) -> tuple[float, int]:
    return target.running_requests / max(1, target.max_running_requests), -target.free_pages


def _draft_order(draft: DraftView) -> tuple[bool, float, float]:
    return draft.num_sessions >= draft.max_sessions, draft.load(more=1), draft.propose_ms


def _show(head: Head) -> str:
    return f"{head.fingerprint[:12]} (feature {head.feature_id[:12]})"
