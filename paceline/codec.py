"""What services say of a request, its shapes and its end: wire messages to value types and back, checked here, once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from paceline.errors import InvalidInputError, UnsupportedFieldError, WireError
from paceline.stats import SpeculationStats
from paceline.types import FinishReason, Rung, SamplingParams, SpeculationDecision, TreeShape
from paceline.v1 import common_pb2, target_pb2

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
