from paceline.v1 import common_pb2 as _common_pb2
from paceline.v1 import verify_pb2 as _verify_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SessionCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SESSION_CODE_UNSPECIFIED: _ClassVar[SessionCode]
    SESSION_CODE_OK: _ClassVar[SessionCode]
    SESSION_CODE_LENGTH_DIFFERS: _ClassVar[SessionCode]
    SESSION_CODE_FULL: _ClassVar[SessionCode]
    SESSION_CODE_UNKNOWN: _ClassVar[SessionCode]
    SESSION_CODE_DRAINING: _ClassVar[SessionCode]
SESSION_CODE_UNSPECIFIED: SessionCode
SESSION_CODE_OK: SessionCode
SESSION_CODE_LENGTH_DIFFERS: SessionCode
SESSION_CODE_FULL: SessionCode
SESSION_CODE_UNKNOWN: SessionCode
SESSION_CODE_DRAINING: SessionCode

class DraftHello(_message.Message):
    __slots__ = ("incarnation", "target", "head_fingerprint", "feature_id")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    HEAD_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    FEATURE_ID_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    target: str
    head_fingerprint: str
    feature_id: str
    def __init__(self, incarnation: _Optional[int] = ..., target: _Optional[str] = ..., head_fingerprint: _Optional[str] = ..., feature_id: _Optional[str] = ...) -> None: ...

class OpenSession(_message.Message):
    __slots__ = ("session", "max_len", "sampling_params", "traceparent")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    MAX_LEN_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_PARAMS_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    session: int
    max_len: int
    sampling_params: _common_pb2.SamplingParams
    traceparent: str
    def __init__(self, session: _Optional[int] = ..., max_len: _Optional[int] = ..., sampling_params: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., traceparent: _Optional[str] = ...) -> None: ...

class SpeculateRequest(_message.Message):
    __slots__ = ("hello", "open", "extend", "release")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    EXTEND_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    hello: DraftHello
    open: _containers.RepeatedCompositeFieldContainer[OpenSession]
    extend: _verify_pb2.ExtendInput
    release: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, hello: _Optional[_Union[DraftHello, _Mapping]] = ..., open: _Optional[_Iterable[_Union[OpenSession, _Mapping]]] = ..., extend: _Optional[_Union[_verify_pb2.ExtendInput, _Mapping]] = ..., release: _Optional[_Iterable[int]] = ...) -> None: ...

class SessionStatus(_message.Message):
    __slots__ = ("session", "code", "committed_len", "round")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_LEN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    session: _containers.RepeatedScalarFieldContainer[int]
    code: _containers.RepeatedScalarFieldContainer[SessionCode]
    committed_len: _containers.RepeatedScalarFieldContainer[int]
    round: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session: _Optional[_Iterable[int]] = ..., code: _Optional[_Iterable[_Union[SessionCode, str]]] = ..., committed_len: _Optional[_Iterable[int]] = ..., round: _Optional[_Iterable[int]] = ...) -> None: ...

class RoundLane(_message.Message):
    __slots__ = ("port", "token")
    PORT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    port: int
    token: bytes
    def __init__(self, port: _Optional[int] = ..., token: _Optional[bytes] = ...) -> None: ...

class SpeculateResponse(_message.Message):
    __slots__ = ("info", "verify", "status", "lane")
    INFO_FIELD_NUMBER: _ClassVar[int]
    VERIFY_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    info: _common_pb2.ServiceInfo
    verify: _verify_pb2.VerifyInput
    status: SessionStatus
    lane: RoundLane
    def __init__(self, info: _Optional[_Union[_common_pb2.ServiceInfo, _Mapping]] = ..., verify: _Optional[_Union[_verify_pb2.VerifyInput, _Mapping]] = ..., status: _Optional[_Union[SessionStatus, _Mapping]] = ..., lane: _Optional[_Union[RoundLane, _Mapping]] = ...) -> None: ...

class SyncRequest(_message.Message):
    __slots__ = ("hello", "session", "base_committed_len", "verified_id", "hidden_states")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    BASE_COMMITTED_LEN_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_ID_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_STATES_FIELD_NUMBER: _ClassVar[int]
    hello: DraftHello
    session: int
    base_committed_len: int
    verified_id: _containers.RepeatedScalarFieldContainer[int]
    hidden_states: _common_pb2.Tensor
    def __init__(self, hello: _Optional[_Union[DraftHello, _Mapping]] = ..., session: _Optional[int] = ..., base_committed_len: _Optional[int] = ..., verified_id: _Optional[_Iterable[int]] = ..., hidden_states: _Optional[_Union[_common_pb2.Tensor, _Mapping]] = ...) -> None: ...

class SyncResponse(_message.Message):
    __slots__ = ("session", "code", "committed_len")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_LEN_FIELD_NUMBER: _ClassVar[int]
    session: int
    code: SessionCode
    committed_len: int
    def __init__(self, session: _Optional[int] = ..., code: _Optional[_Union[SessionCode, str]] = ..., committed_len: _Optional[int] = ...) -> None: ...

class WatchLoadRequest(_message.Message):
    __slots__ = ("min_interval_ms",)
    MIN_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    min_interval_ms: int
    def __init__(self, min_interval_ms: _Optional[int] = ...) -> None: ...

class WatchLoadResponse(_message.Message):
    __slots__ = ("num_sessions", "max_sessions", "free_pages", "num_pages", "busy", "propose_ms", "draining", "incarnation")
    NUM_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    FREE_PAGES_FIELD_NUMBER: _ClassVar[int]
    NUM_PAGES_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    PROPOSE_MS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    num_sessions: int
    max_sessions: int
    free_pages: int
    num_pages: int
    busy: float
    propose_ms: float
    draining: bool
    incarnation: int
    def __init__(self, num_sessions: _Optional[int] = ..., max_sessions: _Optional[int] = ..., free_pages: _Optional[int] = ..., num_pages: _Optional[int] = ..., busy: _Optional[float] = ..., propose_ms: _Optional[float] = ..., draining: bool = ..., incarnation: _Optional[int] = ...) -> None: ...

class DraftServiceGetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DraftServiceGetInfoResponse(_message.Message):
    __slots__ = ("info",)
    INFO_FIELD_NUMBER: _ClassVar[int]
    info: _common_pb2.ServiceInfo
    def __init__(self, info: _Optional[_Union[_common_pb2.ServiceInfo, _Mapping]] = ...) -> None: ...

class DraftServiceInspectRoundRequest(_message.Message):
    __slots__ = ("brief",)
    BRIEF_FIELD_NUMBER: _ClassVar[int]
    brief: bool
    def __init__(self, brief: bool = ...) -> None: ...

class DraftServiceInspectRoundResponse(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: _verify_pb2.RoundView
    def __init__(self, round: _Optional[_Union[_verify_pb2.RoundView, _Mapping]] = ...) -> None: ...

class DraftServiceWatchRoundsRequest(_message.Message):
    __slots__ = ("brief",)
    BRIEF_FIELD_NUMBER: _ClassVar[int]
    brief: bool
    def __init__(self, brief: bool = ...) -> None: ...

class DraftServiceWatchRoundsResponse(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: _verify_pb2.RoundView
    def __init__(self, round: _Optional[_Union[_verify_pb2.RoundView, _Mapping]] = ...) -> None: ...
