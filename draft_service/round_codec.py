"""The last round's live structures as an operator sees them: what a server elsewhere hides."""

from __future__ import annotations

import itertools

import numpy as np

from draft_service.codec import verify_columns
from draft_service.replies import TreeReplies
from draft_service.round_board import TimedRecord
from draft_service.step_batch import StepBatch
from draft_service.step_record import StepPart
from engine.extend_batch import joined
from engine.pages import HeldPages
from engine.ragged import indptr
from engine.tree_links import derive_links
from engine.wire import to_raw
from paceline.round_codec import encode_array, encode_tensor, encode_verify
from paceline.v1 import verify_pb2


def encode_round(
    latest: TimedRecord | None, *, incarnation: int, page_size: int, brief: bool = False
) -> verify_pb2.RoundView:
    """Everything of a step, derived columns included; an empty view before the first.

    brief: without the KV's slots and the features.
    """
    if latest is None:
        return verify_pb2.RoundView()
    record = latest.record
    view = verify_pb2.RoundView(step=record.step, time_unix_ms=latest.time_unix_ms, timings_ms=record.timings_ms)
    view.extend_input.CopyFrom(_extend_input(record.parts))
    if not brief:
        _add_rows(view.extend_input, record.parts, page_size)
    proposals = TreeReplies.join([part.trees for part in record.parts])
    if len(proposals):
        columns = verify_columns(proposals)
        view.verify_input.CopyFrom(encode_verify(columns, incarnation))
        _derive(view.verify_input, columns.num_tokens, columns.base_committed_len, columns.parents)
    return view


def _derive(message: verify_pb2.VerifyInput, counts: np.ndarray, bases: np.ndarray, parents: np.ndarray) -> None:
    indptr = np.concatenate([[0], np.cumsum(counts)])
    links = derive_links(parents, indptr)
    message.positions.extend((np.repeat(bases, counts) + links.depths).tolist())
    message.custom_mask.extend(links.ancestors.tolist())
    flat = np.arange(len(parents), dtype=np.int32)
    for name, column in (
        ("retrieve_index", flat),
        ("retrieve_next_token", links.first_child),
        ("retrieve_next_sibling", links.next_sibling),
    ):
        getattr(message, name).CopyFrom(encode_array(_padded(column, counts, indptr)))


def _padded(column: np.ndarray, counts: np.ndarray, indptr: np.ndarray) -> np.ndarray:
    table = np.full((len(counts), int(counts.max())), -1, np.int32)
    rows = np.repeat(np.arange(len(counts)), counts)
    table[rows, np.arange(len(column)) - np.repeat(indptr[:-1], counts)] = column
    return table


def _extend_input(parts: tuple[StepPart, ...]) -> verify_pb2.ExtendInput:
    """Of every session of the step; the round is 0 where only bulk rows ran."""
    batch = StepBatch.join([part.batch for part in parts])
    targets = {target for part in parts for target in part.target.tolist()}
    num_steps, eagle_topk, num_draft_tokens, min_path_permille = batch.shapes.tolist()
    return verify_pb2.ExtendInput(
        incarnation=targets.pop() if len(targets) == 1 else 0,  # several targets share a step
        session=batch.session.tolist(),
        round=np.maximum(batch.round, 0).tolist(),
        base_committed_len=batch.base_len.tolist(),
        verified_id=batch.tokens.tolist(),
        accept_length=(batch.num_rows - 1).tolist(),
        num_tokens_per_req=batch.num_rows.tolist(),
        num_tokens_for_logprob_per_req=[int(steps > 0) for steps in num_steps],
        num_steps=num_steps,
        eagle_topk=eagle_topk,
        num_draft_tokens=num_draft_tokens,
        min_path_permille=min_path_permille,
    )


def _add_rows(message: verify_pb2.ExtendInput, parts: tuple[StepPart, ...], page_size: int) -> None:
    features = joined(list(itertools.chain.from_iterable(part.batch.features for part in parts)))
    message.hidden_states.CopyFrom(encode_tensor(to_raw(features)))
    lengths = np.concatenate([part.batch.committed_len for part in parts])
    message.kv_indptr.extend(indptr(lengths).tolist())
    for part in parts:
        for page_ids, length in zip(part.page_ids, part.batch.committed_len.tolist(), strict=True):
            message.kv_indices.extend(HeldPages(page_ids, page_size).slots(0, length).tolist())
