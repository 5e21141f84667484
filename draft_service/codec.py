"""Messages to events and answers to messages. All that a peer can get wrong is found here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from draft_service.events import Opening, RoundMessage, SyncMessage
from draft_service.info import DraftInfo
from draft_service.lane_door import LaneOffer
from draft_service.load import LoadFigures
from draft_service.replies import SessionCode, SessionReply, SyncReply
from paceline import __version__
from paceline.codec import (
    decode_extend,
    decode_sampling_params,
    decode_tensor,
    decode_token_ids,
    encode_tree_shape,
    fill_verify,
)
from paceline.errors import InvalidInputError, MismatchError, PacelineError, WireError
from paceline.rounds import ExtendColumns, RawTensor, VerifyColumns
from paceline.types import TreeShape, tree_shape
from paceline.v1 import common_pb2, draft_pb2

MAX_SYNC_BYTES = 1 << 20
_FLOATS = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Edge:
    """What a message must fit to."""

    vocab_size: int
    feature_size: int
    feature_id: str
    head_fingerprint: str

    def check_hello(self, message: draft_pb2.SpeculateRequest | draft_pb2.SyncRequest) -> int:
        """The target's incarnation. Raises WireError without a hello, MismatchError for another head."""
        if not message.HasField("hello"):
            raise WireError("the first message of a stream must carry hello")
        hello = message.hello
        pairs = (
            ("feature_id", hello.feature_id, self.feature_id),
            ("head_fingerprint", hello.head_fingerprint or self.head_fingerprint, self.head_fingerprint),
        )
        for name, theirs, ours in pairs:
            if theirs != ours:
                raise MismatchError(
                    f"{name} of target {hello.target} is {theirs!r} and the draft's is {ours!r}; "
                    "start both with the same --speculative-draft-model-path"
                )
        return hello.incarnation

    def decode_rounds(
        self, message: draft_pb2.SpeculateRequest, *, stream: int, target: int, now_s: float
    ) -> RoundMessage:
        """Raises WireError, InvalidInputError or UnsupportedFieldError for what no sound target sends."""
        extend = None
        shapes: tuple[TreeShape | None, ...] = ()
        if message.HasField("extend"):
            if message.extend.incarnation != target:
                raise WireError(f"extend is of incarnation {message.extend.incarnation} and the stream of {target}")
            extend = decode_extend(message.extend)
            self._check_rows(extend.verified_id, extend.hidden_states)
            shapes = _shapes(extend)
        return RoundMessage(
            stream=stream,
            target=target,
            openings=tuple(_opening(opening) for opening in message.open),
            extend=extend,
            shapes=shapes,
            releases=tuple(message.release),
            arrived_s=now_s,
        )

    def decode_sync(self, message: draft_pb2.SyncRequest, *, target: int, ticket: int) -> SyncMessage:
        """Raises WireError or InvalidInputError for what no sound target sends."""
        features = decode_tensor(message.hidden_states)
        tokens = decode_token_ids(message.verified_id, self.vocab_size)
        if not len(tokens) or features.shape[:1] != (len(tokens),):
            raise WireError(f"bulk rows: {len(tokens)} tokens and hidden_states of shape {list(features.shape)}")
        if len(features.data) > MAX_SYNC_BYTES:
            raise WireError(f"bulk rows of {len(features.data)} bytes; send at most {MAX_SYNC_BYTES} a message")
        self._check_rows(tokens, features)
        return SyncMessage(target, ticket, message.session, message.base_committed_len, tokens, features)

    def _check_rows(self, tokens: np.ndarray, features: RawTensor) -> None:
        if tokens.size and int(tokens.max()) >= self.vocab_size:
            raise InvalidInputError(f"token id {int(tokens.max())} is outside the vocabulary of {self.vocab_size}")
        if features.dtype not in _FLOATS:
            raise WireError(f"hidden_states is {features.dtype}; send one of {', '.join(_FLOATS)}")
        if features.shape[1:] != (self.feature_size,):
            raise WireError(f"hidden_states has shape {list(features.shape)}; rows are {self.feature_size} wide")


@dataclass(frozen=True, slots=True)
class RoundDecoder:
    """Of one round stream: all its messages but the first, which came with hello."""

    edge: Edge
    stream: int
    target: int  # its incarnation
    clock: Callable[[], float]

    def decode(self, message: draft_pb2.SpeculateRequest) -> RoundMessage:
        """Raises WireError, InvalidInputError or UnsupportedFieldError for what no sound target sends."""
        if message.HasField("hello"):
            raise WireError("hello came again; open another stream for another target")
        return self.edge.decode_rounds(message, stream=self.stream, target=self.target, now_s=self.clock())

    def parse(self, payload: bytes) -> RoundMessage:
        """The same of a frame. Raises DecodeError as well."""
        return self.decode(draft_pb2.SpeculateRequest.FromString(payload))


def encode_replies(replies: Sequence[SessionReply], incarnation: int) -> draft_pb2.SpeculateResponse:
    """One message for all sessions of a stream: trees, which acknowledge their round, and a status for the others."""
    response = draft_pb2.SpeculateResponse()
    proposals = [reply for reply in replies if reply.tree is not None]
    if len(proposals) < len(replies):
        others = [reply for reply in replies if reply.tree is None]
        response.status.session.extend([reply.session for reply in others])
        response.status.code.extend([_wire_code(reply.code) for reply in others])
        response.status.committed_len.extend([reply.committed_len for reply in others])
        response.status.round.extend([reply.round for reply in others])
    if proposals:
        fill_verify(response.verify, verify_columns(proposals), incarnation)
    return response


def verify_columns(proposals: Sequence[SessionReply]) -> VerifyColumns:
    """The columns of replies that all carry a tree."""
    trees = [reply.tree for reply in proposals if reply.tree is not None]
    return VerifyColumns(
        session=np.array([reply.session for reply in proposals], np.uint64),
        round=np.array([reply.round for reply in proposals], np.int64),
        base_committed_len=np.array([reply.committed_len for reply in proposals], np.int64),
        num_tokens=np.array([len(tree.tokens) for tree in trees], np.int64),
        draft_token=np.concatenate([tree.tokens for tree in trees]),
        parents=np.concatenate([tree.parents for tree in trees]),
    )


def encode_sync_reply(reply: SyncReply) -> draft_pb2.SyncResponse:
    return draft_pb2.SyncResponse(session=reply.session, code=_wire_code(reply.code), committed_len=reply.committed_len)


def encode_info(info: DraftInfo) -> common_pb2.ServiceInfo:
    return common_pb2.ServiceInfo(
        service="draft",
        version=__version__,
        incarnation=info.incarnation,
        model_name=info.model_name,
        model_fingerprint=info.model_fingerprint,
        head_fingerprint=info.head_fingerprint,
        tokenizer_fingerprint=info.tokenizer_fingerprint,
        feature_id=info.feature_id,
        vocab_size=info.vocab_size,
        context_length=info.context_length,
        feature_size=info.feature_size,
        dtype=info.dtype,
        device=info.device,
        tp_size=1,
        page_size=info.page_size,
        num_pages=info.num_pages,
        max_running_requests=info.max_sessions,
        eos_token_ids=info.eos_token_ids,
        propose_times=[
            common_pb2.ProposeTime(shape=encode_tree_shape(time.shape), sessions=time.num_sessions, ms=time.ms)
            for time in info.propose_times
        ],
    )


def encode_offer(offer: LaneOffer | None) -> draft_pb2.RoundLane | None:
    return None if offer is None else draft_pb2.RoundLane(port=offer.port, token=offer.token)


def encode_load(figures: LoadFigures, info: DraftInfo) -> draft_pb2.WatchLoadResponse:
    return draft_pb2.WatchLoadResponse(
        num_sessions=figures.num_sessions,
        max_sessions=info.max_sessions,
        free_pages=figures.free_pages,
        num_pages=info.num_pages,
        busy=figures.busy,
        propose_ms=figures.propose_ms,
        draining=figures.draining,
        incarnation=info.incarnation,
    )


def _wire_code(code: SessionCode) -> draft_pb2.SessionCode:
    return cast("draft_pb2.SessionCode", int(code))


def _opening(message: draft_pb2.OpenSession) -> Opening:
    if message.max_len < 1:
        raise InvalidInputError(f"max_len of session {message.session} is 0; it must be at least 1")
    try:
        sampling = decode_sampling_params(message.sampling_params)
    except PacelineError as error:
        raise type(error)(f"session {message.session}: {error}") from error
    return Opening(message.session, message.max_len, sampling, message.traceparent)


def _shapes(extend: ExtendColumns) -> tuple[TreeShape | None, ...]:
    """Of each session; None asks for no tree."""
    columns = (extend.num_steps, extend.eagle_topk, extend.num_draft_tokens, extend.min_path_permille)
    numbers = zip(*(column.tolist() for column in columns), strict=True)
    asks = zip(extend.propose.tolist(), numbers, strict=True)
    return tuple(tree_shape(*shape) if proposes else None for proposes, shape in asks)
