"""What the router measures of the service that requests get. Pure: clock readings come in as arguments, in seconds."""

from __future__ import annotations

import math

from router.peer import TargetLoad

MEMORY_S = 10.0  # how far back the rates look; older ones alone are no ground to refuse a request
_LONG_MEMORY_S = 60.0
_SMOOTHING = 0.1  # of step times: about the last ten steps
_PROMPT_UNIT = 100.0  # prompt tokens of a step that weigh as much as its decoding rows: below, they hardly show


class RecentRatio:
    """Sum of amounts over sum of bases, each weighed less the older it is (by a factor e every memory_s)."""

    def __init__(self, memory_s: float = MEMORY_S) -> None:
        self._memory_s = memory_s
        self._amount = 0.0
        self._base = 0.0
        self._at: float | None = None

    def add(self, amount: float, base: float, now: float) -> None:
        if self._at is not None:
            kept = math.exp((self._at - now) / self._memory_s)
            self._amount *= kept
            self._base *= kept
        self._amount += amount
        self._base += base
        self._at = now

    def read(self, now: float) -> float | None:
        """None without a base, or where nothing was added for longer than memory_s."""
        if self._at is None or not self._base or now - self._at > self._memory_s:
            return None
        return self._amount / self._base


class DrainRate:
    """Estimated tokens a second that leave the queue while some wait: what a newcomer's wait is told from."""

    def __init__(self) -> None:
        self._ratio = RecentRatio()
        self._since: float | None = None  # the last event; None while nothing waits

    def waits(self, now: float) -> None:
        """Requests wait that no target takes now. Again is fine."""
        if self._since is None:
            self._since = now

    def took(self, cost: float, now: float) -> None:
        """One of so many tokens was submitted."""
        if self._since is not None:
            self._ratio.add(cost, now - self._since, now)
            self._since = now

    def empty(self) -> None:
        """Nothing waits any more."""
        self._since = None

    def read(self, now: float) -> float | None:
        """Tokens a second; None while not known. Falls while nothing leaves."""
        rate = self._ratio.read(now)
        if rate is None or self._since is None:
            return rate
        return rate * MEMORY_S / (MEMORY_S + now - self._since)


class StepTimes:
    """How long a target's steps take, by what is in them: learnt from its load reports.

    A step's time is decode_ms, where it has decoding rows, and prompt_ms a prompt token. Each report moves both a tenth
    of the way to what it says, in proportion to what they have in it (normalised least mean squares).
    """

    def __init__(self) -> None:
        self.decode_ms: float | None = None  # the wait for trees included
        self.prompt_ms: float | None = None
        self.decode_rows = 0.0  # of a step that has some, trees included
        self._tokens = RecentRatio()
        self._tokens_beside_prompts = RecentRatio()
        self._token_ms = RecentRatio(_LONG_MEMORY_S)  # of a stream
        self._seen_at: float | None = None

    def observe(self, load: TargetLoad, *, new_tokens: int, num_streams: int, now: float) -> None:
        """A step's report; new_tokens: what num_streams decoding requests got in it. Others are passed over."""
        if not load.rows:
            return
        self._seen_at = now
        decode_rows = load.rows - load.prefill_tokens
        if decode_rows:
            self.decode_rows += _SMOOTHING * (decode_rows - self.decode_rows) if self.decode_rows else decode_rows
        self._fit(load.step_ms + load.tree_wait_ms, decode_rows=decode_rows, prompt_tokens=load.prefill_tokens)
        if num_streams:
            self._tokens.add(new_tokens, num_streams, now)
            self._token_ms.add(load.step_ms + load.tree_wait_ms, new_tokens / num_streams, now)
            if load.prefill_tokens:
                self._tokens_beside_prompts.add(new_tokens, num_streams, now)

    def tokens_per_step(self, now: float, *, beside_prompts: bool = False) -> float:
        """That a decoding request gets of a step on average, of all steps or of those with prompts; 1 if not known.

        Less than 1 where prompts have steps of their own while trees are on their way.
        """
        beside = self._tokens_beside_prompts.read(now) if beside_prompts else None
        return beside or self._tokens.read(now) or 1.0

    def service_s(self, prompt_len: int, num_tokens: float, now: float) -> float | None:
        """That a request takes which starts now; None while that is not known.

        At the speed of the last steps or of the last minute, whichever is higher: a slow moment refuses nobody.
        """
        if self._seen_at is None or now - self._seen_at > MEMORY_S or self.decode_ms is None:
            return None
        token_ms = self.decode_ms / self.tokens_per_step(now)
        token_ms = min(token_ms, self._token_ms.read(now) or token_ms)
        return (prompt_len * (self.prompt_ms or 0.0) + (num_tokens - 1) * token_ms) / 1e3

    def _fit(self, ms: float, *, decode_rows: int, prompt_tokens: int) -> None:
        by_rows = ms / (decode_rows + prompt_tokens)
        if decode_rows and self.decode_ms is None:
            self.decode_ms = by_rows * decode_rows
        if prompt_tokens and self.prompt_ms is None:
            self.prompt_ms = by_rows
        decode, prompt = float(decode_rows > 0), prompt_tokens / _PROMPT_UNIT
        error = ms - decode * (self.decode_ms or 0.0) - prompt_tokens * (self.prompt_ms or 0.0)
        step = _SMOOTHING * error / (decode**2 + prompt**2)
        if self.decode_ms is not None:
            self.decode_ms = max(0.0, self.decode_ms + step * decode)
        if self.prompt_ms is not None:
            self.prompt_ms = max(0.0, self.prompt_ms + step * prompt / _PROMPT_UNIT)
