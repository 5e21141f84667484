"""Wire messages to value types and back. Everything that comes from a peer is checked here, once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from paceline.errors import InvalidInputError, UnsupportedFieldError, WireError
from paceline.rounds import ExtendColumns, RawTensor, VerifyColumns
from paceline.stats import SpeculationStats
from paceline.types import FinishReason, Rung, SamplingParams, SpeculationDecision, TreeShape
from paceline.v1 import common_pb2, target_pb2, verify_pb2

_DTYPES = {
    common_pb2.DTYPE_FLOAT32: "float32",
    common_pb2.DTYPE_FLOAT16: "float16",
    common_pb2.DTYPE_BFLOAT16: "bfloat16",
    common_pb2.DTYPE_INT32: "int32",
    common_pb2.DTYPE_INT64: "int64",
    common_pb2.DTYPE_UINT64: "uint64",
}
_DTYPE_CODES = {name: code for code, name in _DTYPES.items()}
_FINISH_REASONS = {
    common_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    common_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    common_pb2.FINISH_REASON_CANCELLED: FinishReason.CANCELLED,
    common_pb2.FINISH_REASON_ERROR: FinishReason.ERROR,
}
_FINISH_CODES = {reason: code for code, reason in _FINISH_REASONS.items()}
_RESERVED_SAMPLING = (
    "stop",
    "n",
    "logit_bias",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logprobs",
    "grammar",
)


def decode_tensor(message: common_pb2.Tensor, data: bytes | None = None) -> RawTensor:
    """data: the bytes, where the message is without. Raises WireError where dtype, shape and bytes disagree."""
    dtype = _DTYPES.get(message.dtype)
    if dtype is None:
        raise WireError(f"a tensor has the unknown dtype {message.dtype}")
    return RawTensor(dtype, tuple(message.shape), message.data if data is None else data)


def encode_tensor(tensor: RawTensor) -> common_pb2.Tensor:
    return common_pb2.Tensor(dtype=_DTYPE_CODES[tensor.dtype], shape=tensor.shape, data=tensor.data)


def encode_array(array: np.ndarray) -> common_pb2.Tensor:
    """A float32, int32, int64 or uint64 array."""
    return encode_tensor(RawTensor(str(array.dtype), array.shape, np.ascontiguousarray(array).tobytes()))


def decode_sampling_params(
    message: common_pb2.SamplingParams, draw_seed: Callable[[], int] | None = None
) -> SamplingParams:
    """draw_seed gives the seed where the message has none; without it that is 0.

    Raises UnsupportedFieldError for a reserved field, InvalidInputError for a value out of its range.
    """
    given = {field.name: value for field, value in message.ListFields()}
    for name in _RESERVED_SAMPLING:
        if name in given:
            raise UnsupportedFieldError(f"{name} is not supported yet; leave it unset")
    if "stop_token_ids" in given:
        given["stop_token_ids"] = tuple(given["stop_token_ids"])
    if draw_seed is not None and "seed" not in given:
        given["seed"] = draw_seed()
    return SamplingParams(**given)


def encode_sampling_params(params: SamplingParams) -> common_pb2.SamplingParams:
    message = common_pb2.SamplingParams()
    fill_sampling_params(message, params)
    return message


def fill_sampling_params(message: common_pb2.SamplingParams, params: SamplingParams) -> None:
    """MUTATES an empty message where it lies."""
    message.max_tokens = params.max_tokens
    message.temperature = params.temperature
    message.top_k = params.top_k
    message.top_p = params.top_p
    message.min_p = params.min_p
    message.seed = params.seed
    message.stop_token_ids.extend(params.stop_token_ids)
    message.ignore_eos = params.ignore_eos


def decode_tree_shape(message: common_pb2.TreeShape) -> TreeShape:
    """Raises InvalidInputError for numbers out of their range."""
    return TreeShape(message.num_steps, message.eagle_topk, message.num_draft_tokens, message.min_path_permille)


def encode_tree_shape(shape: TreeShape) -> common_pb2.TreeShape:
    return common_pb2.TreeShape(
        num_steps=shape.num_steps,
        eagle_topk=shape.eagle_topk,
        num_draft_tokens=shape.num_draft_tokens,
        min_path_permille=shape.min_path_permille,
    )


def decode_decision(message: target_pb2.SpeculationDecision) -> SpeculationDecision:
    """Raises InvalidInputError for a shape out of its range."""
    ladder = tuple(
        Rung(rung.max_running_requests, decode_tree_shape(rung.shape) if rung.HasField("shape") else None)
        for rung in message.ladder
    )
    return SpeculationDecision(message.draft, ladder, message.reason)


def encode_decision(decision: SpeculationDecision) -> target_pb2.SpeculationDecision:
    message = target_pb2.SpeculationDecision()
    fill_decision(message, decision)
    return message


def fill_decision(message: target_pb2.SpeculationDecision, decision: SpeculationDecision) -> None:
    """MUTATES an empty message where it lies; it is set then, whatever it says."""
    message.draft = decision.draft
    message.reason = decision.reason
    for rung in decision.ladder:
        added = message.ladder.add(max_running_requests=rung.max_running_requests)
        if rung.shape is not None:
            added.shape.CopyFrom(encode_tree_shape(rung.shape))
    message.SetInParent()


def decode_finish_reason(code: common_pb2.FinishReason) -> FinishReason:
    """Raises WireError for a code that is none."""
    reason = _FINISH_REASONS.get(code)
    if reason is None:
        raise WireError(f"the unknown finish reason {code}")
    return reason


def encode_finish_reason(reason: FinishReason) -> common_pb2.FinishReason:
    return _FINISH_CODES[reason]


def decode_stats(message: common_pb2.SpeculationStats) -> SpeculationStats:
    return SpeculationStats(
        speculative_rounds=message.speculative_rounds,
        rounds=message.rounds,
        accepted_drafts=message.accepted_drafts,
        proposed_drafts=message.proposed_drafts,
        accepted_by_depth=tuple(message.accepted_by_depth),
        late_rounds=message.late_rounds,
    )


def fill_stats(message: common_pb2.SpeculationStats, stats: SpeculationStats) -> None:
    """MUTATES an empty message where it lies; it is set then, also where all counts are 0."""
    message.rounds = stats.rounds
    message.speculative_rounds = stats.speculative_rounds
    message.accepted_drafts = stats.accepted_drafts
    message.proposed_drafts = stats.proposed_drafts
    message.accepted_by_depth.extend(stats.accepted_by_depth)
    message.late_rounds = stats.late_rounds
    message.SetInParent()


def decode_token_ids(ids: Sequence[int], vocab_size: int) -> np.ndarray:
    """int32 [n]. Raises InvalidInputError for an id outside the vocabulary."""
    tokens = np.fromiter(ids, np.int64, len(ids))
    if tokens.size and int(tokens.max()) >= vocab_size:
        raise InvalidInputError(f"token id {int(tokens.max())} is outside the vocabulary of {vocab_size}")
    return tokens.astype(np.int32)


def decode_extend(message: verify_pb2.ExtendInput) -> ExtendColumns:
    """Raises WireError where columns, rows and tensor disagree."""
    return ExtendColumns(
        session=_column(message.session, np.uint64),
        round=_column(message.round, np.int64),
        base_committed_len=_column(message.base_committed_len, np.int64),
        num_tokens=_column(message.num_tokens_per_req, np.int64),
        propose=_column(message.num_tokens_for_logprob_per_req, np.int64) > 0,
        num_steps=_column(message.num_steps, np.int64),
        eagle_topk=_column(message.eagle_topk, np.int64),
        num_draft_tokens=_column(message.num_draft_tokens, np.int64),
        min_path_permille=_column(message.min_path_permille or [0] * len(message.session), np.int64),
        verified_id=_tokens(message.verified_id),
        hidden_states=decode_tensor(message.hidden_states),
    )


def encode_extend(columns: ExtendColumns, incarnation: int) -> verify_pb2.ExtendInput:
    message = verify_pb2.ExtendInput()
    fill_extend(message, columns, incarnation)
    return message


def fill_extend(message: verify_pb2.ExtendInput, columns: ExtendColumns, incarnation: int) -> None:
    """MUTATES an empty message where it lies: a message that is put into another one is copied, features and all."""
    num_tokens = columns.num_tokens.tolist()
    message.incarnation = incarnation
    message.session.extend(columns.session.tolist())
    message.round.extend(columns.round.tolist())
    message.base_committed_len.extend(columns.base_committed_len.tolist())
    message.verified_id.extend(columns.verified_id.tolist())
    message.accept_length.extend([max(count - 1, 0) for count in num_tokens])
    message.hidden_states.dtype = _DTYPE_CODES[columns.hidden_states.dtype]
    message.hidden_states.shape.extend(columns.hidden_states.shape)
    message.hidden_states.data = columns.hidden_states.data
    message.num_tokens_per_req.extend(num_tokens)
    message.num_tokens_for_logprob_per_req.extend(columns.propose.astype(np.int64).tolist())
    message.num_steps.extend(columns.num_steps.tolist())
    message.eagle_topk.extend(columns.eagle_topk.tolist())
    message.num_draft_tokens.extend(columns.num_draft_tokens.tolist())
    min_path_permille = columns.min_path_permille.tolist()
    if any(min_path_permille):
        message.min_path_permille.extend(min_path_permille)


def decode_verify(message: verify_pb2.VerifyInput) -> VerifyColumns:
    """Raises WireError where the columns disagree. The trees themselves are checked by ``trees()``."""
    return VerifyColumns(
        session=_column(message.session, np.uint64),
        round=_column(message.round, np.int64),
        base_committed_len=_column(message.base_committed_len, np.int64),
        num_tokens=_column(message.num_tokens_per_req, np.int64),
        draft_token=_tokens(message.draft_token),
        parents=_column(message.parents, np.int32),
    )


def encode_verify(columns: VerifyColumns, incarnation: int) -> verify_pb2.VerifyInput:
    message = verify_pb2.VerifyInput()
    fill_verify(message, columns, incarnation)
    return message


def fill_verify(message: verify_pb2.VerifyInput, columns: VerifyColumns, incarnation: int) -> None:
    """MUTATES an empty message where it lies."""
    message.incarnation = incarnation
    message.session.extend(columns.session.tolist())
    message.round.extend(columns.round.tolist())
    message.base_committed_len.extend(columns.base_committed_len.tolist())
    message.num_tokens_per_req.extend(columns.num_tokens.tolist())
    message.draft_token.extend(columns.draft_token.tolist())
    message.parents.extend(columns.parents.tolist())


def _column(values: Sequence[int], dtype: type) -> np.ndarray:
    return np.fromiter(values, dtype, len(values))


def _tokens(values: Sequence[int]) -> np.ndarray:
    """int32; a value of 2**31 or more is no token id."""
    tokens = np.fromiter(values, np.int64, len(values))
    if tokens.size and int(tokens.max()) >= 2**31:
        raise WireError(f"{int(tokens.max())} is no token id")
    return tokens.astype(np.int32)
