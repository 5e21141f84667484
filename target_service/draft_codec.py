"""A draft's messages to events. All that a draft can get wrong is found here."""

from __future__ import annotations

from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from kernels.tree_wire import TreeWire, load_tree_wire
from paceline.errors import WireError
from paceline.round_codec import decode_verify, encode_verify
from paceline.rounds import VerifyColumns
from paceline.v1 import draft_pb2, verify_pb2
from target_service.draft_session import ArrivedTree
from target_service.events import (
    Event,
    LinkEpoch,
    RowsSynced,
    SessionAnswer,
    SessionCode,
    SessionsAnswered,
    TreesArrived,
)
from target_service.tree_nodes import nodes_of

_VERIFY = draft_pb2.SpeculateResponse.VERIFY_FIELD_NUMBER
_CODES: dict[int, SessionCode] = {
    draft_pb2.SESSION_CODE_OK: SessionCode.OK,
    draft_pb2.SESSION_CODE_LENGTH_DIFFERS: SessionCode.LENGTH_DIFFERS,
    draft_pb2.SESSION_CODE_FULL: SessionCode.FULL,
    draft_pb2.SESSION_CODE_UNKNOWN: SessionCode.UNKNOWN,
    draft_pb2.SESSION_CODE_DRAINING: SessionCode.DRAINING,
}


@dataclass(frozen=True, slots=True)
class RoundReader:
    """Of one connection: what its Speculate messages say."""

    at: LinkEpoch
    incarnation: int  # of the draft
    vocab_size: int
    wire: TreeWire | None = field(default_factory=load_tree_wire)

    def events(self, message: draft_pb2.SpeculateResponse) -> list[Event]:
        """Trees of another process of the draft's are dropped. Raises WireError for what makes no sense."""
        events: list[Event] = []
        if message.HasField("verify") and message.verify.incarnation == self.incarnation:
            events.append(decode_trees(message.verify, self.vocab_size, at=self.at))
        if message.HasField("status"):
            events.append(decode_status(message.status, at=self.at))
        return events

    def parse(self, payload: bytes) -> list[Event]:
        """The same of a frame."""
        found = None if self.wire is None else self.wire.read(payload, _VERIFY, self.vocab_size)
        if found is not None and found.incarnation == self.incarnation:
            entries = zip(found.round, found.base_committed_len, found.nodes, strict=True)
            return [TreesArrived(self.at, found.session, [ArrivedTree(*entry) for entry in entries])]
        try:
            message = draft_pb2.SpeculateResponse.FromString(payload)
        except DecodeError as error:
            raise WireError(f"a message does not parse: {error}") from error
        return self.events(message)


@dataclass(frozen=True, slots=True)
class LaneOffer:
    """Where the draft takes rounds, on the host by which it was reached, and what to show there."""

    port: int
    token: bytes


@dataclass(frozen=True, slots=True)
class Greeting:
    """A draft's first message, as far as the link goes by it."""

    incarnation: int
    lane: LaneOffer | None


def decode_greeting(message: draft_pb2.SpeculateResponse) -> Greeting:
    """Raises WireError for a lane's port that is none."""
    lane = message.lane if message.HasField("lane") else None
    if lane is not None and not 0 < lane.port < 65536:
        raise WireError(f"it offers a lane at port {lane.port}; a port is 1 to 65535")
    return Greeting(message.info.incarnation, None if lane is None else LaneOffer(lane.port, lane.token))


def decode_trees(message: verify_pb2.VerifyInput, vocab_size: int, *, at: LinkEpoch) -> TreesArrived:
    """Raises WireError for columns or trees that make no sense, or a token outside the vocabulary."""
    columns = decode_verify(message)
    largest = int(columns.draft_token.max(initial=0))
    if largest >= vocab_size:
        raise WireError(f"a tree holds token id {largest}, outside the vocabulary of {vocab_size}")
    entries = zip(columns.round.tolist(), columns.base_committed_len.tolist(), columns.trees(), strict=True)
    trees = [ArrivedTree(round_number, base, nodes_of(tree)) for round_number, base, tree in entries]
    return TreesArrived(at, columns.session.tolist(), trees)


def encode_trees(columns: VerifyColumns, incarnation: int) -> bytes:
    """A message as a draft sends it, for rehearsals."""
    return draft_pb2.SpeculateResponse(verify=encode_verify(columns, incarnation)).SerializeToString()


def decode_status(message: draft_pb2.SessionStatus, *, at: LinkEpoch) -> SessionsAnswered:
    """Raises WireError where the columns disagree or a code is unknown."""
    size = len(message.session)
    for name in ("code", "committed_len", "round"):
        if len(getattr(message, name)) != size:
            raise WireError(f"{name} has {len(getattr(message, name))} entries for {size} sessions")
    columns = zip(message.session, message.code, message.committed_len, message.round, strict=True)
    answers = [SessionAnswer(session, _code(code), held_len, number) for session, code, held_len, number in columns]
    return SessionsAnswered(at, answers)


def decode_synced(message: draft_pb2.SyncResponse, *, at: LinkEpoch) -> RowsSynced:
    """Raises WireError for an unknown code."""
    return RowsSynced(at, message.session, _code(message.code), message.committed_len)


def _code(number: int) -> SessionCode:
    code = _CODES.get(number)
    if code is None:
        raise WireError(f"{number} is no session code")
    return code
