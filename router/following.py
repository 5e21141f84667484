"""Following: which requests a draft keeps up with, asked or not."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

# Without an ask, after which a draft on the target's own host lets go: soon, for a burst's first requests are followed
# for nothing.
_IDLE_S = 0.25


class Following:
    """Pure: the clock comes in.

    To follow costs the draft the head's work for each token, prompt included, which a target on the same cores or the
    same GPU feels: on two cores with eight in flight, 4 % of a plain token's time. So none follows a request that
    begins where no tree would be asked, until one would. Where the services share a host, a draft also lets go of a
    request that it was not asked about for a while; elsewhere it stays, and is warm when speculation comes back. One
    that is asked again gets all rows from the target's pool.
    """

    def __init__(self, *, shares_host: bool) -> None:
        self._shares_host = shares_host
        self._asked_s: dict[Hashable, float] = {}  # of those that are followed: when one would have been asked last

    def start(self, key: Hashable, now_s: float, *, asks: bool) -> None:
        """asks: whether a tree would be asked for it now."""
        if asks:
            self._asked_s[key] = now_s

    def end(self, key: Hashable) -> None:
        """Again is fine."""
        self._asked_s.pop(key, None)

    def follows(self, key: Hashable) -> bool:
        return key in self._asked_s

    def revise(self, requests: Iterable[tuple[Hashable, bool]], now_s: float) -> list[Hashable]:
        """requests: all that run, and whether a tree would be asked for each. Returns those for which it changed."""
        changed = []
        for key, asks in requests:
            asked_s = self._asked_s.get(key)
            if asks:
                self._asked_s[key] = now_s
                if asked_s is None:
                    changed.append(key)
            elif asked_s is not None and self._shares_host and now_s - asked_s >= _IDLE_S:
                del self._asked_s[key]
                changed.append(key)
        return changed
