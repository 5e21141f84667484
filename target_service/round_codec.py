"""A step's live structures as an operator sees them."""

from __future__ import annotations

import numpy as np

from paceline.round_codec import encode_array
from paceline.v1 import verify_pb2
from target_service.round_record import RoundRecord


def encode_round(record: RoundRecord, incarnation: int, *, brief: bool = False) -> verify_pb2.RoundView:
    """Every sampled request of the step, prompts that ended in it included as one-node trees; derived columns filled.

    extend_input holds what was committed for the requests that go on, without the feature bytes; brief: without the
    KV's slots, too.
    """
    return verify_pb2.RoundView(
        step=record.step,
        time_unix_ms=int(record.time_s * 1e3),
        verify_input=_verify_input(record),
        verify_output=_verify_output(record),
        extend_input=_extend_input(record, incarnation, brief=brief),
        timings_ms=record.timings_ms,
    )


def _verify_input(record: RoundRecord) -> verify_pb2.VerifyInput:
    plan, trees = record.plan, record.plan.trees
    counts = np.diff(trees.node_indptr)
    ancestors = plan.attention.ancestors[plan.logit_rows]
    masks = np.where(ancestors == 0, np.uint64(1), ancestors)  # the last row of a prompt sees itself
    message = verify_pb2.VerifyInput(
        session=[session for session, _ in record.sessions],
        round=[number for _, number in record.sessions],
        base_committed_len=trees.positions[trees.node_indptr[:-1]].tolist(),
        num_tokens_per_req=counts.tolist(),
        draft_token=trees.tokens.tolist(),
        parents=[_parent(mask, node) for mask, node in zip(masks.tolist(), _local(trees.node_indptr), strict=True)],
        positions=trees.positions.tolist(),
        custom_mask=masks.tolist(),
    )
    flat = np.arange(len(trees.tokens), dtype=np.int32)
    for name, column in (
        ("retrieve_index", flat),
        ("retrieve_next_token", trees.first_child),
        ("retrieve_next_sibling", trees.next_sibling),
    ):
        getattr(message, name).CopyFrom(encode_array(_padded(column, trees.node_indptr)))
    return message


def _verify_output(record: RoundRecord) -> verify_pb2.VerifyOutput:
    accept_length = record.walk.accept_length.tolist()
    return verify_pb2.VerifyOutput(
        session=[session for session, _ in record.sessions],
        round=[number for _, number in record.sessions],
        verified_id=record.walk.verified_id.tolist(),
        accept_length=accept_length,
        accept_length_cpu=accept_length,
        accepted_indices=record.walk.accepted_indices.tolist(),
    )


def _extend_input(record: RoundRecord, incarnation: int, *, brief: bool) -> verify_pb2.ExtendInput:
    trees = record.plan.trees
    num_rows = record.walk.accept_length + 1
    stops = np.cumsum(num_rows)
    message = verify_pb2.ExtendInput(incarnation=incarnation, kv_indptr=[] if brief else [0])
    ended = set(record.ended)
    for entry, (session, number) in enumerate(record.sessions):
        if entry in ended:
            continue
        message.session.append(session)
        message.round.append(number)
        message.base_committed_len.append(int(trees.positions[trees.node_indptr[entry]]))
        message.verified_id.extend(record.walk.verified_id[stops[entry] - num_rows[entry] : stops[entry]].tolist())
        message.accept_length.append(int(num_rows[entry]) - 1)
        message.num_tokens_per_req.append(int(num_rows[entry]))
        if not brief:
            message.kv_indices.extend(_slots(record, entry).tolist())
            message.kv_indptr.append(len(message.kv_indices))
    return message


def _slots(record: RoundRecord, entry: int) -> np.ndarray:
    """int64: the slots of all KV that the request had in the step, in order of position or of tree node."""
    attention = record.plan.attention
    first_row = record.plan.logit_rows[record.plan.trees.node_indptr[entry]]
    request = int(np.searchsorted(attention.q_indptr, first_row, side="right")) - 1
    pages = attention.page_ids[attention.page_indptr[request] : attention.page_indptr[request + 1]]
    indices = np.arange(attention.prefix_len[request] + attention.local_len[request])
    return pages[indices // attention.page_size].astype(np.int64) * attention.page_size + indices % attention.page_size


def _local(indptr: np.ndarray) -> list[int]:
    """Each node's index within its own tree."""
    return [node for count in np.diff(indptr).tolist() for node in range(count)]


def _parent(mask: int, node: int) -> int:
    """The nearest ancestor is the highest bit below the node's own; -1 at a root."""
    return (mask & ((1 << node) - 1)).bit_length() - 1


def _padded(column: np.ndarray, indptr: np.ndarray) -> np.ndarray:
    counts = np.diff(indptr)
    table = np.full((len(counts), int(counts.max(initial=0))), -1, np.int32)
    table[np.repeat(np.arange(len(counts)), counts), _local(indptr)] = column
    return table
