from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Dtype(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[Dtype]
    DTYPE_FLOAT32: _ClassVar[Dtype]
    DTYPE_FLOAT16: _ClassVar[Dtype]
    DTYPE_BFLOAT16: _ClassVar[Dtype]
    DTYPE_INT32: _ClassVar[Dtype]
    DTYPE_INT64: _ClassVar[Dtype]
    DTYPE_UINT64: _ClassVar[Dtype]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_CANCELLED: _ClassVar[FinishReason]
    FINISH_REASON_ERROR: _ClassVar[FinishReason]
DTYPE_UNSPECIFIED: Dtype
DTYPE_FLOAT32: Dtype
DTYPE_FLOAT16: Dtype
DTYPE_BFLOAT16: Dtype
DTYPE_INT32: Dtype
DTYPE_INT64: Dtype
DTYPE_UINT64: Dtype
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_CANCELLED: FinishReason
FINISH_REASON_ERROR: FinishReason

class Tensor(_message.Message):
    __slots__ = ("dtype", "shape", "data")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    dtype: Dtype
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, dtype: _Optional[_Union[Dtype, str]] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "stop_token_ids", "ignore_eos", "stop", "n", "logit_bias", "frequency_penalty", "presence_penalty", "repetition_penalty", "logprobs", "grammar")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    stop: _containers.RepeatedScalarFieldContainer[str]
    n: int
    logit_bias: _containers.ScalarMap[int, float]
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    logprobs: int
    grammar: str
    def __init__(self, max_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: bool = ..., stop: _Optional[_Iterable[str]] = ..., n: _Optional[int] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., frequency_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., logprobs: _Optional[int] = ..., grammar: _Optional[str] = ...) -> None: ...

class TreeShape(_message.Message):
    __slots__ = ("num_steps", "eagle_topk", "num_draft_tokens", "min_path_permille")
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    EAGLE_TOPK_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_PATH_PERMILLE_FIELD_NUMBER: _ClassVar[int]
    num_steps: int
    eagle_topk: int
    num_draft_tokens: int
    min_path_permille: int
    def __init__(self, num_steps: _Optional[int] = ..., eagle_topk: _Optional[int] = ..., num_draft_tokens: _Optional[int] = ..., min_path_permille: _Optional[int] = ...) -> None: ...

class SpeculationStats(_message.Message):
    __slots__ = ("speculative_rounds", "rounds", "accepted_drafts", "proposed_drafts", "accepted_by_depth", "late_rounds")
    SPECULATIVE_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_BY_DEPTH_FIELD_NUMBER: _ClassVar[int]
    LATE_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    speculative_rounds: int
    rounds: int
    accepted_drafts: int
    proposed_drafts: int
    accepted_by_depth: _containers.RepeatedScalarFieldContainer[int]
    late_rounds: int
    def __init__(self, speculative_rounds: _Optional[int] = ..., rounds: _Optional[int] = ..., accepted_drafts: _Optional[int] = ..., proposed_drafts: _Optional[int] = ..., accepted_by_depth: _Optional[_Iterable[int]] = ..., late_rounds: _Optional[int] = ...) -> None: ...

class StepTime(_message.Message):
    __slots__ = ("rows", "ms")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    MS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    ms: float
    def __init__(self, rows: _Optional[int] = ..., ms: _Optional[float] = ...) -> None: ...

class ProposeTime(_message.Message):
    __slots__ = ("shape", "sessions", "ms")
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    MS_FIELD_NUMBER: _ClassVar[int]
    shape: TreeShape
    sessions: int
    ms: float
    def __init__(self, shape: _Optional[_Union[TreeShape, _Mapping]] = ..., sessions: _Optional[int] = ..., ms: _Optional[float] = ...) -> None: ...

class ServiceInfo(_message.Message):
    __slots__ = ("service", "version", "incarnation", "model_name", "model_fingerprint", "head_fingerprint", "tokenizer_fingerprint", "feature_id", "vocab_size", "context_length", "feature_size", "dtype", "device", "tp_size", "page_size", "num_pages", "max_running_requests", "eos_token_ids", "step_times", "propose_times", "overlaps_rounds")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    HEAD_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    FEATURE_ID_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    FEATURE_SIZE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    TP_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_PAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    STEP_TIMES_FIELD_NUMBER: _ClassVar[int]
    PROPOSE_TIMES_FIELD_NUMBER: _ClassVar[int]
    OVERLAPS_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    service: str
    version: str
    incarnation: int
    model_name: str
    model_fingerprint: str
    head_fingerprint: str
    tokenizer_fingerprint: str
    feature_id: str
    vocab_size: int
    context_length: int
    feature_size: int
    dtype: str
    device: str
    tp_size: int
    page_size: int
    num_pages: int
    max_running_requests: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    step_times: _containers.RepeatedCompositeFieldContainer[StepTime]
    propose_times: _containers.RepeatedCompositeFieldContainer[ProposeTime]
    overlaps_rounds: bool
    def __init__(self, service: _Optional[str] = ..., version: _Optional[str] = ..., incarnation: _Optional[int] = ..., model_name: _Optional[str] = ..., model_fingerprint: _Optional[str] = ..., head_fingerprint: _Optional[str] = ..., tokenizer_fingerprint: _Optional[str] = ..., feature_id: _Optional[str] = ..., vocab_size: _Optional[int] = ..., context_length: _Optional[int] = ..., feature_size: _Optional[int] = ..., dtype: _Optional[str] = ..., device: _Optional[str] = ..., tp_size: _Optional[int] = ..., page_size: _Optional[int] = ..., num_pages: _Optional[int] = ..., max_running_requests: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., step_times: _Optional[_Iterable[_Union[StepTime, _Mapping]]] = ..., propose_times: _Optional[_Iterable[_Union[ProposeTime, _Mapping]]] = ..., overlaps_rounds: bool = ...) -> None: ...
