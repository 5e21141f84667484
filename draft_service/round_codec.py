"""The last round's live structures as an operator sees them: what a server elsewhere hides."""

from __future__ import annotations

import numpy as np
import torch

from draft_service.codec import verify_columns
from draft_service.draft_engine import RoundPart
from draft_service.round_board import TimedRecord
from engine.tree_links import derive_links
from engine.wire import to_raw
from paceline.codec import encode_array, encode_tensor, encode_verify
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
    proposals = [part.reply for part in record.parts if part.reply is not None and part.reply.tree is not None]
    if proposals:
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


def _extend_input(parts: tuple[RoundPart, ...]) -> verify_pb2.ExtendInput:
    """Of every session of the step; the round is 0 where only bulk rows ran."""
    shapes = [part.work.shape for part in parts]
    num_rows = [len(part.work.rows) for part in parts]
    targets = {part.session.key.target for part in parts}
    return verify_pb2.ExtendInput(
        incarnation=targets.pop() if len(targets) == 1 else 0,  # several targets share a step
        session=[part.session.key.session for part in parts],
        round=[part.reply.round if part.reply is not None else 0 for part in parts],
        base_committed_len=[part.work.base_len for part in parts],
        verified_id=np.concatenate([part.work.rows.tokens for part in parts]).tolist(),
        accept_length=[rows - 1 for rows in num_rows],
        num_tokens_per_req=num_rows,
        num_tokens_for_logprob_per_req=[int(shape is not None) for shape in shapes],
        num_steps=[shape.num_steps if shape else 0 for shape in shapes],
        eagle_topk=[shape.eagle_topk if shape else 0 for shape in shapes],
        num_draft_tokens=[shape.num_draft_tokens if shape else 0 for shape in shapes],
        min_path_permille=[shape.min_path_permille if shape else 0 for shape in shapes],
    )


def _add_rows(message: verify_pb2.ExtendInput, parts: tuple[RoundPart, ...], page_size: int) -> None:
    slots = [_slots(part, page_size) for part in parts]
    message.hidden_states.CopyFrom(encode_tensor(to_raw(torch.cat([part.work.rows.features for part in parts]))))
    message.kv_indptr.extend(np.concatenate([[0], np.cumsum([len(s) for s in slots])]).tolist())
    message.kv_indices.extend(np.concatenate(slots).tolist())


def _slots(part: RoundPart, page_size: int) -> np.ndarray:
    positions = np.arange(part.work.base_len + len(part.work.rows))
    return part.page_ids[positions // page_size].astype(np.int64) * page_size + positions % page_size
