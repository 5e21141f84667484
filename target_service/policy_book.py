"""PolicyBook: what the routers wish of a target's batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from target_service.events import PolicySet
from target_service.scheduler import Limits


class PolicyBook:
    """The strictest of all routers' wishes holds, within the flags. Engine thread only."""

    def __init__(self, limits: Limits, *, max_running_requests: int) -> None:
        """Those of the flags."""
        self.limits = limits
        self.max_running_requests = max_running_requests
        self._flags = limits, max_running_requests
        self._policies: dict[int, PolicySet] = {}  # by stream
        self._joins: dict[int, bool] = {}  # their wishes to join rounds

    def set(self, event: PolicySet) -> None:
        """What a router does not say stays as it was."""
        before = self._policies.get(event.stream, PolicySet(event.stream))
        wishes = dataclasses.asdict(event)
        self._policies[event.stream] = dataclasses.replace(
            before, **{name: wish for name, wish in wishes.items() if wish is not None}
        )
        self._apply()

    def drop(self, stream: int) -> None:
        """The router is gone, and its wishes with it."""
        if self._policies.pop(stream, None) is not None:
            self._apply()

    def join_rounds(self, streams: Iterable[int]) -> bool | None:
        """Whether a router of one of the streams wishes it; None: none of them says."""
        if not self._joins:
            return None
        wishes = [self._joins[stream] for stream in set(streams) & self._joins.keys()]
        return any(wishes) if wishes else None

    def _apply(self) -> None:
        policies = self._policies.values()
        self._joins = {p.stream: p.join_rounds for p in policies if p.join_rounds is not None}
        limits, max_running_requests = self._flags
        self.max_running_requests = _least(max_running_requests, (p.max_running_requests for p in policies))
        self.limits = Limits(
            max_rows=_least(limits.max_rows, (p.max_rows for p in policies)),
            chunked_prefill_size=_least(limits.chunked_prefill_size, (p.chunked_prefill_size for p in policies)),
        )


def _least(bound: int, wishes: Iterable[int | None]) -> int:
    """At least 1: a router cannot stop the others."""
    return max(1, min([bound, *(wish for wish in wishes if wish is not None)]))
