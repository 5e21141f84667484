"""Serve's messages to events and batches to messages. All that a router can get wrong is found here."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from paceline.codec import (
    decode_decision,
    decode_sampling_params,
    decode_token_ids,
    encode_finish_reason,
    encode_tree_shape,
    fill_stats,
)
from paceline.errors import InvalidInputError, PacelineError, WireError
from paceline.types import SamplingParams, TreeShape
from paceline.v1 import common_pb2, target_pb2
from target_service.emission import Finished, Returned, ReturnReason, StreamBatch
from target_service.events import Cancelled, Event, PolicySet, Refused, SpeculationUpdated, Submitted
from target_service.load import Load
from target_service.request import Request, RequestKey, cost_of
from target_service.round_columns import RoundColumns
from target_service.token_columns import join

_log = logging.getLogger(__name__)
_RETURN_REASONS = {
    ReturnReason.NO_CREDIT: target_pb2.RETURN_REASON_NO_CREDIT,
    ReturnReason.PREEMPTED: target_pb2.RETURN_REASON_PREEMPTED,
    ReturnReason.DRAINING: target_pb2.RETURN_REASON_DRAINING,
}


@dataclass(frozen=True, slots=True)
class Edge:
    """What a submission must fit to."""

    vocab_size: int
    context_length: int
    page_size: int

    def decode(self, message: target_pb2.ServeRequest, stream: int) -> list[Event]:
        """Raises a PacelineError for a message that makes no sense; one bad submission is an event of its own."""
        match message.WhichOneof("message"):
            case "submit":
                return self._decode_submit(message.submit, stream)
            case "cancel":
                return [Cancelled(stream, list(message.cancel.requests))]
            case "update_speculation":
                update = message.update_speculation
                if len(update.requests) != len(update.decisions):
                    counts = f"{len(update.requests)} requests and {len(update.decisions)} decisions"
                    raise WireError(f"update_speculation has {counts}; send one decision a request")
                decisions = [decode_decision(decision) for decision in update.decisions]
                return [SpeculationUpdated(stream, list(update.requests), decisions)]
            case "batch_policy":
                return [_decode_policy(message.batch_policy, stream)]
            case "hello":
                raise WireError("hello came twice; it belongs into a stream's first message alone")
            case _:
                raise WireError("a ServeRequest carries no message")

    def _decode_submit(self, submit: target_pb2.Submit, stream: int) -> list[Event]:
        requests: list[Request] = []
        events: list[Event] = [Submitted(requests)]
        for message in submit.submissions:
            sent = message.sampling_params
            max_tokens = sent.max_tokens if sent.HasField("max_tokens") else SamplingParams().max_tokens
            cost = cost_of(
                prompt_len=len(message.prompt_ids),
                max_tokens=max_tokens,
                context_length=self.context_length,
                page_size=self.page_size,
            )
            try:
                self._check_lengths(message)
                request = Request(
                    key=RequestKey(stream, message.request),
                    prompt_ids=decode_token_ids(message.prompt_ids, self.vocab_size),
                    emitted_ids=decode_token_ids(message.emitted_ids, self.vocab_size),
                    params=decode_sampling_params(sent),
                    decision=decode_decision(message.decision),
                    cost=cost,
                    request_id=message.request_id,
                    traceparent=message.traceparent,
                )
            except PacelineError as error:
                _log.warning("a submission is refused: %s", error, extra={"request_id": message.request_id})
                events.append(Refused(stream, message.request, cost, error))
            else:
                requests.append(request)
        return events

    def _check_lengths(self, message: target_pb2.Submission) -> None:
        prompt_len = len(message.prompt_ids)
        if prompt_len == 0:
            raise InvalidInputError("prompt_ids is empty; send at least one token")
        if prompt_len >= self.context_length:
            raise InvalidInputError(
                f"the prompt has {prompt_len} tokens and the context holds {self.context_length}, output included; "
                "send a shorter prompt"
            )


def encode_batch(batch: StreamBatch) -> target_pb2.ServeResponse:
    """One message for all of the router's requests."""
    response = target_pb2.ServeResponse(
        step=batch.step,
        finishes=[_encode_finished(finished) for finished in batch.finishes],
        returns=[_encode_returned(returned) for returned in batch.returns],
    )
    if batch.deltas:
        columns = join(batch.deltas)
        response.deltas.request.extend(columns.request.tolist())
        response.deltas.offset.extend(columns.offset.tolist())
        response.deltas.num_tokens.extend(columns.num_tokens.tolist())
        response.deltas.tokens.extend(columns.tokens.tolist())
    if batch.credits is not None:
        response.credits.slots = batch.credits.slots
        response.credits.pages = batch.credits.pages
    if batch.load is not None:
        response.load.CopyFrom(encode_load(batch.load))
    if batch.rounds:
        _add_rounds(response.rounds, batch.rounds)
    return response


def encode_load(load: Load) -> target_pb2.LoadReport:
    return target_pb2.LoadReport(
        running_requests=load.running_requests,
        prefilling_requests=load.prefilling_requests,
        max_running_requests=load.max_running_requests,
        rows=load.step.rows,
        prefill_tokens=load.step.prefill_tokens,
        free_slots=load.free_slots,
        free_pages=load.free_pages,
        num_pages=load.num_pages,
        step_ms=load.step.step_ms,
        forward_ms=load.step.forward_ms,
        tree_wait_ms=load.step.tree_wait_ms,
        context_tokens=load.step.context_tokens,
        verified_requests=load.step.verified_requests,
        drafted_requests=load.step.drafted_requests,
        tree_turnaround_ms=load.step.tree_turnaround_ms,
        mean_accepted_length=load.mean_accepted_length,
        accepted_by_depth=load.accepted_by_depth,
        draining=load.draining,
        drafts=[
            target_pb2.DraftLinkState(draft=link.draft, connected=link.connected, sessions=link.num_sessions)
            for link in load.drafts
        ],
    )


def _add_rounds(message: target_pb2.SpeculativeRounds, rounds: Sequence[RoundColumns]) -> None:
    index: dict[TreeShape, int] = {}
    for columns in rounds:
        message.shape.extend([index.setdefault(shape, len(index)) for shape in columns.shapes])
        message.request.extend(columns.request.tolist())
        message.num_nodes.extend(columns.num_nodes.tolist())
        message.accept_length.extend(columns.accept_length.tolist())
    message.shapes.extend([encode_tree_shape(shape) for shape in index])


def _decode_policy(message: target_pb2.BatchPolicy, stream: int) -> PolicySet:
    wishes = {field.name: value for field, value in message.ListFields()}
    return PolicySet(stream, **wishes)


def _encode_finished(finished: Finished) -> target_pb2.Finish:
    reason = common_pb2.FinishReason.Name(encode_finish_reason(finished.reason))
    message = target_pb2.Finish(request=finished.request, reason=reason)
    if finished.stats is not None:
        fill_stats(message.stats, finished.stats)
    if finished.error is not None:
        message.status_code = _status_number(finished.error.code)
        message.status_message = str(finished.error)
    return message


def _encode_returned(returned: Returned) -> target_pb2.Return:
    message = target_pb2.Return(request=returned.request, reason=_RETURN_REASONS[returned.reason])
    if returned.stats is not None:
        fill_stats(message.stats, returned.stats)
    return message


def _status_number(code: grpc.StatusCode) -> int:
    number: int = code.value[0]
    return number
