from paceline.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VerifyInput(_message.Message):
    __slots__ = ("incarnation", "session", "round", "base_committed_len", "num_tokens_per_req", "draft_token", "parents", "positions", "retrieve_index", "retrieve_next_token", "retrieve_next_sibling", "custom_mask")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BASE_COMMITTED_LEN_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_PER_REQ_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    RETRIEVE_INDEX_FIELD_NUMBER: _ClassVar[int]
    RETRIEVE_NEXT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    RETRIEVE_NEXT_SIBLING_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_MASK_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    session: _containers.RepeatedScalarFieldContainer[int]
    round: _containers.RepeatedScalarFieldContainer[int]
    base_committed_len: _containers.RepeatedScalarFieldContainer[int]
    num_tokens_per_req: _containers.RepeatedScalarFieldContainer[int]
    draft_token: _containers.RepeatedScalarFieldContainer[int]
    parents: _containers.RepeatedScalarFieldContainer[int]
    positions: _containers.RepeatedScalarFieldContainer[int]
    retrieve_index: _common_pb2.Tensor
    retrieve_next_token: _common_pb2.Tensor
    retrieve_next_sibling: _common_pb2.Tensor
    custom_mask: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, incarnation: _Optional[int] = ..., session: _Optional[_Iterable[int]] = ..., round: _Optional[_Iterable[int]] = ..., base_committed_len: _Optional[_Iterable[int]] = ..., num_tokens_per_req: _Optional[_Iterable[int]] = ..., draft_token: _Optional[_Iterable[int]] = ..., parents: _Optional[_Iterable[int]] = ..., positions: _Optional[_Iterable[int]] = ..., retrieve_index: _Optional[_Union[_common_pb2.Tensor, _Mapping]] = ..., retrieve_next_token: _Optional[_Union[_common_pb2.Tensor, _Mapping]] = ..., retrieve_next_sibling: _Optional[_Union[_common_pb2.Tensor, _Mapping]] = ..., custom_mask: _Optional[_Iterable[int]] = ...) -> None: ...

class VerifyOutput(_message.Message):
    __slots__ = ("session", "round", "verified_id", "accept_length", "accept_length_cpu", "accepted_indices")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_ID_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_LENGTH_CPU_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_INDICES_FIELD_NUMBER: _ClassVar[int]
    session: _containers.RepeatedScalarFieldContainer[int]
    round: _containers.RepeatedScalarFieldContainer[int]
    verified_id: _containers.RepeatedScalarFieldContainer[int]
    accept_length: _containers.RepeatedScalarFieldContainer[int]
    accept_length_cpu: _containers.RepeatedScalarFieldContainer[int]
    accepted_indices: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session: _Optional[_Iterable[int]] = ..., round: _Optional[_Iterable[int]] = ..., verified_id: _Optional[_Iterable[int]] = ..., accept_length: _Optional[_Iterable[int]] = ..., accept_length_cpu: _Optional[_Iterable[int]] = ..., accepted_indices: _Optional[_Iterable[int]] = ...) -> None: ...

class ExtendInput(_message.Message):
    __slots__ = ("incarnation", "session", "round", "base_committed_len", "verified_id", "accept_length", "hidden_states", "num_tokens_per_req", "num_tokens_for_logprob_per_req", "num_steps", "eagle_topk", "num_draft_tokens", "min_path_permille", "kv_indptr", "kv_indices")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BASE_COMMITTED_LEN_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_ID_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_STATES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_PER_REQ_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FOR_LOGPROB_PER_REQ_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    EAGLE_TOPK_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_PATH_PERMILLE_FIELD_NUMBER: _ClassVar[int]
    KV_INDPTR_FIELD_NUMBER: _ClassVar[int]
    KV_INDICES_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    session: _containers.RepeatedScalarFieldContainer[int]
    round: _containers.RepeatedScalarFieldContainer[int]
    base_committed_len: _containers.RepeatedScalarFieldContainer[int]
    verified_id: _containers.RepeatedScalarFieldContainer[int]
    accept_length: _containers.RepeatedScalarFieldContainer[int]
    hidden_states: _common_pb2.Tensor
    num_tokens_per_req: _containers.RepeatedScalarFieldContainer[int]
    num_tokens_for_logprob_per_req: _containers.RepeatedScalarFieldContainer[int]
    num_steps: _containers.RepeatedScalarFieldContainer[int]
    eagle_topk: _containers.RepeatedScalarFieldContainer[int]
    num_draft_tokens: _containers.RepeatedScalarFieldContainer[int]
    min_path_permille: _containers.RepeatedScalarFieldContainer[int]
    kv_indptr: _containers.RepeatedScalarFieldContainer[int]
    kv_indices: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, incarnation: _Optional[int] = ..., session: _Optional[_Iterable[int]] = ..., round: _Optional[_Iterable[int]] = ..., base_committed_len: _Optional[_Iterable[int]] = ..., verified_id: _Optional[_Iterable[int]] = ..., accept_length: _Optional[_Iterable[int]] = ..., hidden_states: _Optional[_Union[_common_pb2.Tensor, _Mapping]] = ..., num_tokens_per_req: _Optional[_Iterable[int]] = ..., num_tokens_for_logprob_per_req: _Optional[_Iterable[int]] = ..., num_steps: _Optional[_Iterable[int]] = ..., eagle_topk: _Optional[_Iterable[int]] = ..., num_draft_tokens: _Optional[_Iterable[int]] = ..., min_path_permille: _Optional[_Iterable[int]] = ..., kv_indptr: _Optional[_Iterable[int]] = ..., kv_indices: _Optional[_Iterable[int]] = ...) -> None: ...

class RoundView(_message.Message):
    __slots__ = ("step", "time_unix_ms", "verify_input", "verify_output", "extend_input", "timings_ms")
    class TimingsMsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STEP_FIELD_NUMBER: _ClassVar[int]
    TIME_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_INPUT_FIELD_NUMBER: _ClassVar[int]
    VERIFY_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    EXTEND_INPUT_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_MS_FIELD_NUMBER: _ClassVar[int]
    step: int
    time_unix_ms: int
    verify_input: VerifyInput
    verify_output: VerifyOutput
    extend_input: ExtendInput
    timings_ms: _containers.ScalarMap[str, float]
    def __init__(self, step: _Optional[int] = ..., time_unix_ms: _Optional[int] = ..., verify_input: _Optional[_Union[VerifyInput, _Mapping]] = ..., verify_output: _Optional[_Union[VerifyOutput, _Mapping]] = ..., extend_input: _Optional[_Union[ExtendInput, _Mapping]] = ..., timings_ms: _Optional[_Mapping[str, float]] = ...) -> None: ...
