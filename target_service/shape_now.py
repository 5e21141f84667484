"""Which tree a request may ask for now."""

from __future__ import annotations

from paceline.types import TreeShape
from target_service.sequence import Sequence


def shape_now(seq: Sequence, committed_len: int, *, num_decoding: int, context_length: int) -> TreeShape | None:
    """The decision's shape, less the levels that the context has no room for; None to decode plainly.

    committed_len: the request's. num_decoding: requests past their prompt, by which the decision's rung is chosen. A
    request in prefill asks for none, nor does one with one token to come.
    """
    if not seq.is_decoding or committed_len + 2 >= seq.limit:
        return None
    shape = seq.decision.shape_for(num_decoding)
    return None if shape is None else shape.within(context_length - 1 - committed_len)
