"""Growth of proposal trees in plain torch: protocol.md, "Building the tree"."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.growth import GrowingTrees


def grow_beam(trees: GrowingTrees, log_probs: Tensor, draft_ids: Tensor, level: int) -> None:
    """As ``Ops.grow_beam``."""
    shape, found, num_sessions = trees.shape, trees.candidates, trees.num_sessions
    topk = shape.topk
    scores = torch.where(torch.isfinite(log_probs), log_probs, -torch.inf).view(num_sessions, -1)
    scores = torch.where(_is_wanted(trees, level), scores, -torch.inf)
    ids = draft_ids.clamp(0, len(trees.inputs.target_ids) - 1)
    tokens = trees.inputs.target_ids[ids].view(num_sessions, -1)
    parents = torch.full_like(tokens, -1)
    if level:
        beam = found.beams[level - 1].long()
        scores = scores + found.scores.gather(1, beam).repeat_interleave(topk, 1)
        parents = beam.repeat_interleave(topk, 1)
    span = slice(shape.first_of(level), shape.first_of(level + 1))
    found.scores[:, span] = scores
    found.tokens[:, span] = tokens
    found.parents[:, span] = parents
    if level + 1 < shape.num_steps:
        best = scores.sort(dim=1, descending=True, stable=True).indices[:, :topk]
        found.beams[level] = span.start + best
        _fill_rows(trees, best, tokens.gather(1, best), level)


def choose_nodes(trees: GrowingTrees) -> None:
    """As ``Ops.choose_nodes``."""
    shape, found, nodes = trees.shape, trees.candidates, trees.nodes
    is_fit = torch.isfinite(found.scores) & (found.scores >= trees.inputs.min_score[:, None].float())
    num_chosen = torch.minimum(is_fit.sum(1), trees.inputs.num_nodes - 1)[:, None]
    order = found.scores.sort(dim=1, descending=True, stable=True).indices
    rank = torch.empty_like(order).scatter_(
        1, order, torch.arange(shape.num_candidates, device=order.device).expand_as(order)
    )
    chosen = rank < num_chosen
    found.places.copy_(torch.where(chosen, chosen.cumsum(1), 0))
    # A node that is not chosen goes to the column of the node count, which is written last.
    column = torch.where(chosen, found.places, -1).long()
    up = torch.where(found.parents < 0, 0, found.places.gather(1, found.parents.clamp_min(0).long()))
    nodes.fill_(-1)
    nodes[:, 1] = trees.inputs.roots
    nodes.scatter_(1, column + 1, found.tokens)
    nodes.scatter_(1, torch.where(chosen, column + 1 + shape.num_nodes, 0), up)
    nodes[:, 0] = num_chosen[:, 0] + 1


def _is_wanted(trees: GrowingTrees, level: int) -> Tensor:
    """bool [b, children of a level]: those within the session's own shape."""
    inputs, widest = trees.inputs, trees.shape.topk
    is_within = torch.arange(widest, device=inputs.topk.device) < inputs.topk[:, None]
    is_wanted = is_within & (level < inputs.num_steps)[:, None]
    return (is_wanted[:, :, None] & is_within[:, None, :]).flatten(1) if level else is_wanted


def _fill_rows(trees: GrowingTrees, best: Tensor, tokens: Tensor, level: int) -> None:
    """best: [b, topk] index within the level's candidates."""
    shape, found, inputs, rows = trees.shape, trees.candidates, trees.inputs, trees.rows
    topk, num_rows = shape.topk, trees.num_sessions * shape.topk
    session = torch.arange(trees.num_sessions, device=best.device)[:, None]
    scratch = level * topk + torch.arange(topk, device=best.device)
    own = (torch.ones_like(scratch) << scratch).expand_as(best)
    if level:
        place = best // topk
        parent_rows = session * topk + place
        paths = found.paths[level - 1].gather(1, place) | own
    else:
        parent_rows, paths = session.expand_as(best), own
    found.paths[level] = paths
    positions = (inputs.committed_len + level)[:, None].expand_as(best)
    slots = inputs.scratch_slots[level * topk : (level + 1) * topk].T
    for target, values in (
        (rows.tokens, tokens),
        (rows.parent_rows, parent_rows),
        (rows.positions, positions),
        (rows.slots, slots),
        (rows.ancestors, paths),
    ):
        target[:num_rows] = values.reshape(-1)
    rows.local_len[: trees.num_sessions] = (level + 1) * topk
