from paceline.v1 import common_pb2 as _common_pb2
from paceline.v1 import verify_pb2 as _verify_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReturnReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RETURN_REASON_UNSPECIFIED: _ClassVar[ReturnReason]
    RETURN_REASON_NO_CREDIT: _ClassVar[ReturnReason]
    RETURN_REASON_PREEMPTED: _ClassVar[ReturnReason]
    RETURN_REASON_DRAINING: _ClassVar[ReturnReason]
RETURN_REASON_UNSPECIFIED: ReturnReason
RETURN_REASON_NO_CREDIT: ReturnReason
RETURN_REASON_PREEMPTED: ReturnReason
RETURN_REASON_DRAINING: ReturnReason

class SpeculationRung(_message.Message):
    __slots__ = ("max_running_requests", "shape")
    MAX_RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    max_running_requests: int
    shape: _common_pb2.TreeShape
    def __init__(self, max_running_requests: _Optional[int] = ..., shape: _Optional[_Union[_common_pb2.TreeShape, _Mapping]] = ...) -> None: ...

class SpeculationDecision(_message.Message):
    __slots__ = ("draft", "ladder", "reason")
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    LADDER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    draft: str
    ladder: _containers.RepeatedCompositeFieldContainer[SpeculationRung]
    reason: str
    def __init__(self, draft: _Optional[str] = ..., ladder: _Optional[_Iterable[_Union[SpeculationRung, _Mapping]]] = ..., reason: _Optional[str] = ...) -> None: ...

class Submission(_message.Message):
    __slots__ = ("request", "request_id", "prompt_ids", "emitted_ids", "attempt", "sampling_params", "decision", "traceparent")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    EMITTED_IDS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_PARAMS_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    request: int
    request_id: str
    prompt_ids: _containers.RepeatedScalarFieldContainer[int]
    emitted_ids: _containers.RepeatedScalarFieldContainer[int]
    attempt: int
    sampling_params: _common_pb2.SamplingParams
    decision: SpeculationDecision
    traceparent: str
    def __init__(self, request: _Optional[int] = ..., request_id: _Optional[str] = ..., prompt_ids: _Optional[_Iterable[int]] = ..., emitted_ids: _Optional[_Iterable[int]] = ..., attempt: _Optional[int] = ..., sampling_params: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., decision: _Optional[_Union[SpeculationDecision, _Mapping]] = ..., traceparent: _Optional[str] = ...) -> None: ...

class ServeHello(_message.Message):
    __slots__ = ("router", "incarnation")
    ROUTER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    router: str
    incarnation: int
    def __init__(self, router: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("submissions",)
    SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    submissions: _containers.RepeatedCompositeFieldContainer[Submission]
    def __init__(self, submissions: _Optional[_Iterable[_Union[Submission, _Mapping]]] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, requests: _Optional[_Iterable[int]] = ...) -> None: ...

class UpdateSpeculation(_message.Message):
    __slots__ = ("requests", "decisions")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedScalarFieldContainer[int]
    decisions: _containers.RepeatedCompositeFieldContainer[SpeculationDecision]
    def __init__(self, requests: _Optional[_Iterable[int]] = ..., decisions: _Optional[_Iterable[_Union[SpeculationDecision, _Mapping]]] = ...) -> None: ...

class BatchPolicy(_message.Message):
    __slots__ = ("max_running_requests", "max_rows", "chunked_prefill_size", "join_rounds")
    MAX_RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    CHUNKED_PREFILL_SIZE_FIELD_NUMBER: _ClassVar[int]
    JOIN_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    max_running_requests: int
    max_rows: int
    chunked_prefill_size: int
    join_rounds: bool
    def __init__(self, max_running_requests: _Optional[int] = ..., max_rows: _Optional[int] = ..., chunked_prefill_size: _Optional[int] = ..., join_rounds: bool = ...) -> None: ...

class ServeRequest(_message.Message):
    __slots__ = ("hello", "submit", "cancel", "update_speculation", "batch_policy")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    UPDATE_SPECULATION_FIELD_NUMBER: _ClassVar[int]
    BATCH_POLICY_FIELD_NUMBER: _ClassVar[int]
    hello: ServeHello
    submit: Submit
    cancel: Cancel
    update_speculation: UpdateSpeculation
    batch_policy: BatchPolicy
    def __init__(self, hello: _Optional[_Union[ServeHello, _Mapping]] = ..., submit: _Optional[_Union[Submit, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., update_speculation: _Optional[_Union[UpdateSpeculation, _Mapping]] = ..., batch_policy: _Optional[_Union[BatchPolicy, _Mapping]] = ...) -> None: ...

class Credits(_message.Message):
    __slots__ = ("slots", "pages")
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    slots: int
    pages: int
    def __init__(self, slots: _Optional[int] = ..., pages: _Optional[int] = ...) -> None: ...

class TokenDeltas(_message.Message):
    __slots__ = ("request", "offset", "num_tokens", "tokens")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    request: _containers.RepeatedScalarFieldContainer[int]
    offset: _containers.RepeatedScalarFieldContainer[int]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request: _Optional[_Iterable[int]] = ..., offset: _Optional[_Iterable[int]] = ..., num_tokens: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class SpeculativeRounds(_message.Message):
    __slots__ = ("shapes", "request", "shape", "num_nodes", "accept_length")
    SHAPES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    NUM_NODES_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    shapes: _containers.RepeatedCompositeFieldContainer[_common_pb2.TreeShape]
    request: _containers.RepeatedScalarFieldContainer[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    num_nodes: _containers.RepeatedScalarFieldContainer[int]
    accept_length: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, shapes: _Optional[_Iterable[_Union[_common_pb2.TreeShape, _Mapping]]] = ..., request: _Optional[_Iterable[int]] = ..., shape: _Optional[_Iterable[int]] = ..., num_nodes: _Optional[_Iterable[int]] = ..., accept_length: _Optional[_Iterable[int]] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ("request", "reason", "stats", "status_code", "status_message")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    STATUS_CODE_FIELD_NUMBER: _ClassVar[int]
    STATUS_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    request: int
    reason: _common_pb2.FinishReason
    stats: _common_pb2.SpeculationStats
    status_code: int
    status_message: str
    def __init__(self, request: _Optional[int] = ..., reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., stats: _Optional[_Union[_common_pb2.SpeculationStats, _Mapping]] = ..., status_code: _Optional[int] = ..., status_message: _Optional[str] = ...) -> None: ...

class Return(_message.Message):
    __slots__ = ("request", "reason", "stats")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    request: int
    reason: ReturnReason
    stats: _common_pb2.SpeculationStats
    def __init__(self, request: _Optional[int] = ..., reason: _Optional[_Union[ReturnReason, str]] = ..., stats: _Optional[_Union[_common_pb2.SpeculationStats, _Mapping]] = ...) -> None: ...

class LoadReport(_message.Message):
    __slots__ = ("running_requests", "prefilling_requests", "max_running_requests", "rows", "prefill_tokens", "free_slots", "free_pages", "num_pages", "step_ms", "forward_ms", "tree_wait_ms", "mean_accepted_length", "accepted_by_depth", "draining", "drafts", "context_tokens", "verified_requests", "drafted_requests", "tree_turnaround_ms")
    RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PREFILLING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FREE_SLOTS_FIELD_NUMBER: _ClassVar[int]
    FREE_PAGES_FIELD_NUMBER: _ClassVar[int]
    NUM_PAGES_FIELD_NUMBER: _ClassVar[int]
    STEP_MS_FIELD_NUMBER: _ClassVar[int]
    FORWARD_MS_FIELD_NUMBER: _ClassVar[int]
    TREE_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    MEAN_ACCEPTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_BY_DEPTH_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    TREE_TURNAROUND_MS_FIELD_NUMBER: _ClassVar[int]
    running_requests: int
    prefilling_requests: int
    max_running_requests: int
    rows: int
    prefill_tokens: int
    free_slots: int
    free_pages: int
    num_pages: int
    step_ms: float
    forward_ms: float
    tree_wait_ms: float
    mean_accepted_length: float
    accepted_by_depth: _containers.RepeatedScalarFieldContainer[float]
    draining: bool
    drafts: _containers.RepeatedCompositeFieldContainer[DraftLinkState]
    context_tokens: int
    verified_requests: int
    drafted_requests: int
    tree_turnaround_ms: float
    def __init__(self, running_requests: _Optional[int] = ..., prefilling_requests: _Optional[int] = ..., max_running_requests: _Optional[int] = ..., rows: _Optional[int] = ..., prefill_tokens: _Optional[int] = ..., free_slots: _Optional[int] = ..., free_pages: _Optional[int] = ..., num_pages: _Optional[int] = ..., step_ms: _Optional[float] = ..., forward_ms: _Optional[float] = ..., tree_wait_ms: _Optional[float] = ..., mean_accepted_length: _Optional[float] = ..., accepted_by_depth: _Optional[_Iterable[float]] = ..., draining: bool = ..., drafts: _Optional[_Iterable[_Union[DraftLinkState, _Mapping]]] = ..., context_tokens: _Optional[int] = ..., verified_requests: _Optional[int] = ..., drafted_requests: _Optional[int] = ..., tree_turnaround_ms: _Optional[float] = ...) -> None: ...

class DraftLinkState(_message.Message):
    __slots__ = ("draft", "connected", "sessions")
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    draft: str
    connected: bool
    sessions: int
    def __init__(self, draft: _Optional[str] = ..., connected: bool = ..., sessions: _Optional[int] = ...) -> None: ...

class ServeResponse(_message.Message):
    __slots__ = ("info", "step", "deltas", "finishes", "returns", "credits", "load", "rounds")
    INFO_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    FINISHES_FIELD_NUMBER: _ClassVar[int]
    RETURNS_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    info: _common_pb2.ServiceInfo
    step: int
    deltas: TokenDeltas
    finishes: _containers.RepeatedCompositeFieldContainer[Finish]
    returns: _containers.RepeatedCompositeFieldContainer[Return]
    credits: Credits
    load: LoadReport
    rounds: SpeculativeRounds
    def __init__(self, info: _Optional[_Union[_common_pb2.ServiceInfo, _Mapping]] = ..., step: _Optional[int] = ..., deltas: _Optional[_Union[TokenDeltas, _Mapping]] = ..., finishes: _Optional[_Iterable[_Union[Finish, _Mapping]]] = ..., returns: _Optional[_Iterable[_Union[Return, _Mapping]]] = ..., credits: _Optional[_Union[Credits, _Mapping]] = ..., load: _Optional[_Union[LoadReport, _Mapping]] = ..., rounds: _Optional[_Union[SpeculativeRounds, _Mapping]] = ...) -> None: ...

class TargetServiceGetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TargetServiceGetInfoResponse(_message.Message):
    __slots__ = ("info", "load")
    INFO_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    info: _common_pb2.ServiceInfo
    load: LoadReport
    def __init__(self, info: _Optional[_Union[_common_pb2.ServiceInfo, _Mapping]] = ..., load: _Optional[_Union[LoadReport, _Mapping]] = ...) -> None: ...

class TargetServiceInspectRoundRequest(_message.Message):
    __slots__ = ("brief",)
    BRIEF_FIELD_NUMBER: _ClassVar[int]
    brief: bool
    def __init__(self, brief: bool = ...) -> None: ...

class TargetServiceInspectRoundResponse(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: _verify_pb2.RoundView
    def __init__(self, round: _Optional[_Union[_verify_pb2.RoundView, _Mapping]] = ...) -> None: ...

class TargetServiceWatchRoundsRequest(_message.Message):
    __slots__ = ("brief",)
    BRIEF_FIELD_NUMBER: _ClassVar[int]
    brief: bool
    def __init__(self, brief: bool = ...) -> None: ...

class TargetServiceWatchRoundsResponse(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: _verify_pb2.RoundView
    def __init__(self, round: _Optional[_Union[_verify_pb2.RoundView, _Mapping]] = ...) -> None: ...
