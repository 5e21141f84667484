"""Messages to events and answers to messages. All that a peer can get wrong is found here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from draft_service.events import Opening, RoundMessage, SyncMessage
from draft_service.extend_codec import FLOATS, decode_round
from draft_service.frame_codec import RoundFrame, parse_round
from draft_service.info import DraftInfo
from draft_service.lane_door import LaneOffer
from draft_service.load import LoadFigures
from draft_service.replies import SessionCode, SessionReply, StreamReplies, SyncReply, TreeReplies
from draft_service.step_batch import StepBatch
from kernels.round_wire import ExtendBounds, read_extend, write_trees
from paceline import __version__
from paceline.codec import decode_sampling_params, decode_token_ids, encode_tree_shape
from paceline.errors import InvalidInputError, MismatchError, PacelineError, WireError
from paceline.round_codec import decode_tensor, fill_verify
from paceline.rounds import RawTensor, VerifyColumns
from paceline.v1 import common_pb2, draft_pb2

MAX_SYNC_BYTES = 1 << 20


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

    def decode_rounds(self, frame: RoundFrame, *, stream: int, target: int, now_s: float) -> RoundMessage:
        """Raises WireError, InvalidInputError or UnsupportedFieldError for what no sound target sends."""
        message, extend = frame.message, None
        if message.HasField("extend"):
            if message.extend.incarnation != target:
                raise WireError(f"extend is of incarnation {message.extend.incarnation} and the stream of {target}")
            columns = decode_round(message.extend, frame.features, vocab_size=self.vocab_size)
            self._check_features(columns.hidden_states)
            extend = StepBatch.of_columns(columns) if len(columns.session) else None
        return RoundMessage(
            stream=stream,
            target=target,
            openings=tuple(_opening(opening) for opening in message.open),
            extend=extend,
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
        self._check_features(features)
        return SyncMessage(target, ticket, message.session, message.base_committed_len, tokens, features)

    def _check_features(self, features: RawTensor) -> None:
        if features.dtype not in FLOATS.values():
            raise WireError(f"hidden_states is {features.dtype}; send one of {', '.join(FLOATS.values())}")
        if features.shape[1:] != (self.feature_size,):
            raise WireError(f"hidden_states has shape {list(features.shape)}; rows are {self.feature_size} wide")


@dataclass(frozen=True, slots=True)
class RoundDecoder:
    """Of one round stream: all its messages but the first, which came with hello."""

    edge: Edge
    stream: int
    target: int  # its incarnation
    clock: Callable[[], float]
    _bounds: ExtendBounds = field(init=False)

    def __post_init__(self) -> None:
        bounds = ExtendBounds(self.edge.vocab_size, self.target, self.edge.feature_size)
        object.__setattr__(self, "_bounds", bounds)

    def decode(self, message: draft_pb2.SpeculateRequest) -> RoundMessage:
        """Raises WireError, InvalidInputError or UnsupportedFieldError for what no sound target sends."""
        return self._decode(RoundFrame(message, None))

    def parse(self, payload: bytes | bytearray) -> RoundMessage:
        """The same of a lane's frame. Raises DecodeError as well."""
        frame = read_extend(payload, self._bounds)
        if frame is None or frame.dtype not in FLOATS:
            return self._decode(parse_round(payload))
        table, tokens, dtype, features = frame
        rows = RawTensor(FLOATS[dtype], (len(tokens), self.edge.feature_size), features)
        extend = StepBatch(table, tokens, (rows,))
        return RoundMessage(self.stream, self.target, (), extend, (), self.clock())

    def _decode(self, frame: RoundFrame) -> RoundMessage:
        if frame.message.HasField("hello"):
            raise WireError("hello came again; open another stream for another target")
        return self.edge.decode_rounds(frame, stream=self.stream, target=self.target, now_s=self.clock())


def encode_replies(replies: StreamReplies, incarnation: int) -> draft_pb2.SpeculateResponse:
    """One message for all sessions of a stream: trees, which acknowledge their round, and a status for the others."""
    response = draft_pb2.SpeculateResponse()
    columns = [reply for reply in replies if isinstance(reply, TreeReplies)]
    if len(columns) < len(replies):
        single = [reply for reply in replies if isinstance(reply, SessionReply)]
        if proposals := [reply for reply in single if reply.tree is not None]:
            columns.append(TreeReplies.of(proposals))
        if others := [reply for reply in single if reply.tree is None]:
            response.status.session.extend([reply.session for reply in others])
            response.status.code.extend([_wire_code(reply.code) for reply in others])
            response.status.committed_len.extend([reply.committed_len for reply in others])
            response.status.round.extend([reply.round for reply in others])
    if columns:
        fill_verify(response.verify, verify_columns(TreeReplies.join(columns)), incarnation)
    return response


def pack_replies(replies: StreamReplies, incarnation: int) -> bytes:
    """The bytes of ``encode_replies``."""
    if len(replies) == 1 and isinstance(reply := replies[0], TreeReplies):
        payload = write_trees(incarnation, reply.table, reply.trees)
        if payload is not None:
            return payload
    return encode_replies(replies, incarnation).SerializeToString()


def verify_columns(replies: TreeReplies) -> VerifyColumns:
    """As they travel."""
    return VerifyColumns(
        session=replies.session,
        round=replies.round,
        base_committed_len=replies.committed_len,
        num_tokens=replies.trees.num_nodes,
        draft_token=replies.trees.tokens,
        parents=replies.trees.parents,
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
