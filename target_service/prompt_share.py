"""PromptShare: how many prompt tokens a step takes beside the requests that decode."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import ceil

from target_service.deadline import StepTimes


class PromptShare:
    """Up to some number of rows, on an H200 at the 8B shape about 128, a step takes as long as its weights take to be
    read; past it every row costs. So a prompt may go in two parts beside trees, each nearly free, where in one it makes
    all wait: of 110 tokens beside 64 rows, 2.6 ms in one part and 1.5 in two.

    Pure. A part costs what it adds to the step; what is left then costs as much a token, and each further step that it
    takes costs the tokens that its requests do not get meanwhile.
    """

    def __init__(self, times: StepTimes) -> None:
        self._times = times

    def tokens(self, waiting: Sequence[int], *, most: int, rows: int, num_decoding: int) -> int:
        """waiting: what is left of each prompt, in order. most: tokens that the step may take. rows: of the trees.

        All that may be taken, where nobody decodes; or up to a number of rows that was measured at warm-up.
        """
        total = min(sum(waiting), most)
        if not (rows and num_decoding and total):
            return total
        ends = list(accumulate(waiting))
        parts = [part for size, _ in self._times.warm_up if 0 < (part := size - rows) < total]
        return min([total, *parts], key=lambda part: self._cost_ms(part, total, ends, rows, num_decoding))

    def _cost_ms(self, part: int, total: int, ends: list[int], rows: int, num_decoding: int) -> float:
        """Of the total, taken by parts. ends: where each prompt does, among all tokens."""
        extra_ms, left = self._extra_ms(rows, part), total - part
        if not left:
            return extra_ms
        further = ceil(left / part)
        rest_ms = self._extra_ms(rows, left) if left <= part else left / part * extra_ms
        held_up = sum(part < end <= total for end in ends)
        return extra_ms + rest_ms + further * held_up / num_decoding * self._times.expect(rows + part)

    def _extra_ms(self, rows: int, tokens: int) -> float:
        return self._times.expect(rows + tokens) - self._times.expect(rows)
