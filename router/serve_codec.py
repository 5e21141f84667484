"""What travels between router and targets, and what drafts report: value types to messages and back."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from paceline.codec import decode_tree_shape, fill_decision, fill_sampling_params
from paceline.errors import WireError
from paceline.tree import MAX_NODES
from paceline.types import SpeculationDecision, TreeShape
from paceline.v1 import common_pb2, draft_pb2, target_pb2
from router.live_request import LiveRequest
from router.peer import DraftLoad, PeerInfo, TargetLoad
from router.placement import Head

NO_CREDIT = "no-credit"
_RETURN_REASONS: dict[int, str] = {
    target_pb2.RETURN_REASON_NO_CREDIT: NO_CREDIT,
    target_pb2.RETURN_REASON_PREEMPTED: "preempted",
    target_pb2.RETURN_REASON_DRAINING: "draining",
}


def encode_hello(router: str, incarnation: int) -> target_pb2.ServeRequest:
    return target_pb2.ServeRequest(hello=target_pb2.ServeHello(router=router, incarnation=incarnation))


def encode_submit(live: LiveRequest, *, number: int, max_tokens: int) -> target_pb2.ServeRequest:
    """The attempt that live's flight describes. max_tokens: clipped to the target's context."""
    request, sampling = live.request, live.request.sampling
    assert live.flight is not None
    if sampling.max_tokens != max_tokens:
        sampling = dataclasses.replace(sampling, max_tokens=max_tokens)
    message = target_pb2.ServeRequest()
    submission = message.submit.submissions.add()
    submission.request = number
    submission.request_id = request.request_id
    submission.prompt_ids.extend(request.prompt_ids)
    submission.emitted_ids.extend(live.emitted)
    submission.attempt = live.attempt
    fill_sampling_params(submission.sampling_params, sampling)
    fill_decision(submission.decision, live.flight.decision)
    submission.traceparent = live.trace.traceparent
    return message


def join_submits(messages: Sequence[target_pb2.ServeRequest]) -> target_pb2.ServeRequest:
    """All submissions in one message. MUTATES the first."""
    first, *others = messages
    for message in others:
        first.MergeFrom(message)
    return first


def encode_update(decisions: Mapping[int, SpeculationDecision]) -> target_pb2.ServeRequest:
    message = target_pb2.ServeRequest()
    update = message.update_speculation
    update.requests.extend(decisions)
    for decision in decisions.values():
        fill_decision(update.decisions.add(), decision)
    return message


def encode_cancel(numbers: Sequence[int]) -> target_pb2.ServeRequest:
    return target_pb2.ServeRequest(cancel=target_pb2.Cancel(requests=numbers))


def encode_batch_policy(fields: Mapping[str, int]) -> target_pb2.ServeRequest:
    policy = target_pb2.BatchPolicy()
    for name, value in fields.items():
        setattr(policy, name, value)
    return target_pb2.ServeRequest(batch_policy=policy)


def split_deltas(deltas: target_pb2.TokenDeltas) -> Iterator[tuple[int, int, list[int]]]:
    """Each request's number, offset and tokens. Raises WireError where the columns disagree in length."""
    tokens = deltas.tokens[:]
    counts = deltas.num_tokens[:]
    if not len(deltas.request) == len(deltas.offset) == len(counts) or sum(counts) != len(tokens):
        raise WireError("the columns of the target's token deltas disagree in length")
    start = 0
    for number, offset, count in zip(deltas.request, deltas.offset, counts, strict=True):
        stop = start + count
        yield number, offset, tokens[start:stop]
        start = stop


def split_rounds(rounds: target_pb2.SpeculativeRounds) -> Iterator[tuple[int, TreeShape, int, int]]:
    """Each round's request, shape, nodes (1: its tree was late) and accepted drafts.

    Raises WireError where the columns disagree, or hold what no round can have.
    """
    shapes = [decode_tree_shape(shape) for shape in rounds.shapes]
    columns = rounds.request, rounds.shape, rounds.num_nodes, rounds.accept_length
    if len({len(column) for column in columns}) > 1 or max(rounds.shape, default=-1) >= len(shapes):
        raise WireError("the columns of the target's speculative rounds disagree in length, or name no shape")
    if not 1 <= min(rounds.num_nodes, default=1) <= max(rounds.num_nodes, default=1) <= MAX_NODES:
        raise WireError(f"the target's speculative rounds have a tree that is not of 1 to {MAX_NODES} nodes")
    for number, shape, num_nodes, accepted in zip(*columns, strict=True):
        if accepted >= num_nodes:
            raise WireError(f"the target's speculative rounds accept {accepted} drafts of a tree of {num_nodes} nodes")
        yield number, shapes[shape], num_nodes, accepted


def decode_info(message: common_pb2.ServiceInfo) -> PeerInfo:
    return PeerInfo(
        service=message.service,
        incarnation=message.incarnation,
        model_fingerprint=message.model_fingerprint,
        tokenizer_fingerprint=message.tokenizer_fingerprint,
        head=Head(message.head_fingerprint, message.feature_id),
        vocab_size=message.vocab_size,
        context_length=message.context_length,
        page_size=max(1, message.page_size),
        num_pages=message.num_pages,
        max_running_requests=message.max_running_requests,
        eos_token_ids=frozenset(message.eos_token_ids),
        step_times=_step_times(message),
        overlaps_rounds=message.overlaps_rounds,
        propose_times=tuple((decode_tree_shape(time.shape), time.sessions, time.ms) for time in message.propose_times),
    )


def _step_times(message: common_pb2.ServiceInfo) -> tuple[tuple[int, float], ...]:
    times = tuple((time.rows, time.ms) for time in message.step_times)
    ascend = all(before < after for (before, _), (after, _) in pairwise(times))
    if not (ascend and all(math.isfinite(ms) and ms > 0 for _, ms in times)):
        raise WireError(f"step times {times}: their rows must ascend, and their ms be finite and above 0")
    return times


def decode_target_load(message: target_pb2.LoadReport) -> TargetLoad:
    links = {state.draft: state.connected for state in message.drafts} if message.drafts else None
    return TargetLoad(
        decoding_requests=message.running_requests,
        prefilling_requests=message.prefilling_requests,
        draining=message.draining,
        draft_links=links,
        rows=message.rows,
        prefill_tokens=message.prefill_tokens,
        step_ms=message.step_ms,
        forward_ms=message.forward_ms,
        tree_wait_ms=message.tree_wait_ms,
        context_tokens=message.context_tokens,
        verified_requests=message.verified_requests,
        drafted_requests=message.drafted_requests,
        tree_turnaround_ms=message.tree_turnaround_ms,
        mean_accepted_length=message.mean_accepted_length,
        accepted_by_depth=tuple(message.accepted_by_depth),
    )


def decode_draft_load(message: draft_pb2.WatchLoadResponse) -> DraftLoad:
    return DraftLoad(
        num_sessions=message.num_sessions,
        max_sessions=message.max_sessions,
        busy=message.busy,
        draining=message.draining,
        incarnation=message.incarnation,
        free_pages=message.free_pages,
        num_pages=message.num_pages,
        propose_ms=message.propose_ms,
    )


def return_reason(code: int) -> str:
    """For logs and metrics."""
    return _RETURN_REASONS.get(code, "unspecified")
