"""The wire's part of ``bench.host_draft``: a target's message, and what the draft's servicer makes of it."""

from __future__ import annotations

from collections.abc import Sequence

from bench.host_draft_model import HIDDEN, VOCAB
from draft_service.codec import Edge, encode_replies
from draft_service.events import RoundMessage
from draft_service.replies import SessionReply
from paceline.codec import encode_extend
from paceline.rounds import ExtendColumns
from paceline.v1 import draft_pb2

_EDGE = Edge(vocab_size=VOCAB, feature_size=HIDDEN, feature_id="", head_fingerprint="")


def round_message(columns: ExtendColumns, target: int) -> bytes:
    return draft_pb2.SpeculateRequest(extend=encode_extend(columns, target)).SerializeToString()


def decode(raw: bytes, *, stream: int, target: int) -> RoundMessage:
    message = draft_pb2.SpeculateRequest.FromString(raw)
    return _EDGE.decode_rounds(message, stream=stream, target=target, now_s=0.0)


def encode(replies: Sequence[SessionReply]) -> bytes:
    return encode_replies(replies, 1).SerializeToString()
