"""How many prompt tokens a target's steps may take, so that the streams beside them keep their time per token. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from router.peer import TargetLoad
from router.rates import StepTimes

UNBOUNDED = 2**31 - 1  # the target's own flags hold
MIN_CHUNK = 16  # prompt tokens of a step that always go on, however late the streams are
_STEADY = 1.25  # a wish within this factor of what was sent is not sent
_GROWTH = 2.0  # of a chunk from one wish to the next: a small chunk tells little about a large one's time


@dataclass(frozen=True, slots=True)
class StepBounds:
    """The part of a target's BatchPolicy that pacing sets."""

    chunked_prefill_size: int
    max_rows: int


_LOOSE = StepBounds(UNBOUNDED, UNBOUNDED)


class PrefillPacing:
    """The bounds of one target's steps for a time per token of target_tpot_ms.

    A decoding request gets tokens_per_step of each step, so a step may last target_tpot_ms times that. What the step of
    the decoding rows leaves of it goes to prompts, at the measured time a prompt token; the time is convex in the
    tokens, so the measured one is asked anew at each size. Rows are bounded to those of now and the chunk: trees do not
    take what was left to prompts. Without decoding requests nothing is bounded.
    """

    def __init__(self, target_tpot_ms: float) -> None:
        self._target_tpot_ms = target_tpot_ms
        self._sent: StepBounds | None = None

    def revise(self, load: TargetLoad, times: StepTimes, now: float) -> StepBounds | None:
        """The bounds to send after a load report; None where those that hold stay."""
        wish = self._wish(load, times, now)
        if wish is None or (self._sent is None and wish == _LOOSE):
            return None
        if self._sent is not None and _is_near(wish, self._sent):
            return None
        self._sent = wish
        return wish

    def _wish(self, load: TargetLoad, times: StepTimes, now: float) -> StepBounds | None:
        if not load.decoding_requests:
            return _LOOSE
        if times.decode_ms is None or times.prompt_ms is None:
            return None
        spare_ms = self._target_tpot_ms * times.tokens_per_step(now, beside_prompts=True) - times.decode_ms
        chunk = spare_ms / times.prompt_ms if times.prompt_ms else UNBOUNDED
        if self._sent is not None and self._sent != _LOOSE:
            chunk = min(chunk, self._sent.chunked_prefill_size * _GROWTH)
        chunk = int(min(max(chunk, MIN_CHUNK), UNBOUNDED))
        return StepBounds(chunk, min(chunk + round(times.decode_rows * _STEADY), UNBOUNDED))


def _is_near(wish: StepBounds, sent: StepBounds) -> bool:
    pairs = ((wish.chunked_prefill_size, sent.chunked_prefill_size), (wish.max_rows, sent.max_rows))
    return all(max(pair) <= _STEADY * min(pair) for pair in pairs)
