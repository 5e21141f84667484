"""The wire's part of ``bench.host_draft``: a target's message, and what the draft's servicer makes of it."""

from __future__ import annotations

import time

from bench.host_draft_model import EDGE
from draft_service.codec import RoundDecoder, pack_replies
from draft_service.extend_codec import encode_round
from draft_service.replies import StreamReplies
from paceline.rounds import ExtendColumns


def round_message(columns: ExtendColumns, target: int) -> bytearray:
    """As a lane gives it out."""
    return bytearray(encode_round(columns, target))


def decoder(*, stream: int, target: int) -> RoundDecoder:
    return RoundDecoder(EDGE, stream, target, time.perf_counter)


def encode(replies: StreamReplies) -> bytes:
    return pack_replies(replies, 1)
