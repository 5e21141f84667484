"""Drafts on the other end of a DrivenLoop's orders: one that runs the real head, one that knows the future."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from engine.drafter import Drafter, ExtendItem, ProposeParams
from engine.pages import PageAllocator, PageTable
from engine.wire import to_tensor
from paceline.rounds import RawTensor
from paceline.tree import DraftTree
from paceline.types import SamplingParams, TreeShape
from target_service.asks import Asks
from target_service.draft_orders import DraftOrders
from target_service.draft_session import ArrivedTree
from target_service.events import (
    LinkDown,
    LinkEpoch,
    LinkUp,
    LossReason,
    RowsSynced,
    SessionAnswer,
    SessionCode,
    SessionsAnswered,
    TreesArrived,
)
from target_service.tree_nodes import nodes_of
from tests.support.tiny_target import DRAFT, DrivenLoop


@dataclass(slots=True)
class Held:
    """What the draft holds of one session: all rows so far. Tokens start at position 1."""

    max_len: int
    params: SamplingParams
    tokens: list[int] = field(default_factory=list)
    features: list[torch.Tensor] = field(default_factory=list)

    @property
    def rows(self) -> torch.Tensor:
        return torch.cat(self.features)


Propose = Callable[[Held, TreeShape], DraftTree]


class DrivenDraft:
    """Serves a DrivenLoop's orders at once, strictly: rows must join up.

    ``silent`` keeps it from answering asks, ``withholds`` from acknowledging rows that come by Sync.
    """

    def __init__(self, loop: DrivenLoop, propose: Propose, *, address: str = DRAFT) -> None:
        self.loop = loop
        self.propose = propose
        self.address = address
        self.epoch = 0
        self.sessions: dict[int, Held] = {}
        self.silent = False
        self.withholds = False
        self.withheld: list[RowsSynced] = []
        self.full = False
        self.syncs = 0
        self.asks: list[tuple[int, int, int]] = []  # session, base, rows
        self.ended_sessions: list[int] = []
        self._seen = 0

    @property
    def at(self) -> LinkEpoch:
        return LinkEpoch(self.address, self.epoch)

    def connect(self) -> None:
        self.epoch += 1
        self.sessions.clear()
        self.loop.put(LinkUp(self.at))

    def lose(self, reason: LossReason = LossReason.UNREACHABLE) -> None:
        self.sessions.clear()
        self.loop.put(LinkDown(self.at, reason, "test"))

    def serve(self) -> None:
        """Takes the orders of all turns since the last call."""
        new, self._seen = self.loop.orders[self._seen :], len(self.loop.orders)
        for by_address in new:
            orders = by_address.get(self.address)
            if orders is not None and orders.epoch == self.epoch and self.epoch:
                self._obey(orders)

    def run(self, max_turns: int = 2000) -> None:
        """Turns and serves until no request runs, and all was told."""
        for _ in range(max_turns):
            self.loop.turn()
            self.serve()
            if not self.loop.parts.requests.sequences:
                self.loop.settle()
                return
        raise AssertionError("requests still run")

    def _obey(self, orders: DraftOrders) -> None:
        answers = []
        for order in orders.opens:
            assert order.session not in self.sessions
            if self.full:
                answers.append(SessionAnswer(order.session, SessionCode.FULL, 0, 0))
                continue
            self.sessions[order.session] = Held(order.max_len, order.params)
            answers.append(SessionAnswer(order.session, SessionCode.OK, 0, 0))
        if answers:
            self.loop.put(SessionsAnswered(self.at, answers))
        for sync in orders.syncs:
            self.syncs += 1
            held = self.sessions[sync.session]
            assert sync.base_committed_len == len(held.tokens), "bulk rows leave a hole"
            held.tokens += sync.verified_id.tolist()
            held.features.append(to_tensor(sync.hidden_states))
            acknowledged = RowsSynced(self.at, sync.session, SessionCode.OK, len(held.tokens))
            if self.withholds:
                self.withheld.append(acknowledged)
            else:
                self.loop.put(acknowledged)
        if orders.asks is not None:
            self._extend(orders.asks)
        for session in orders.releases:
            self.ended_sessions.append(session)
            self.sessions.pop(session, None)

    def _extend(self, asks: Asks) -> None:
        hidden = to_tensor(RawTensor(asks.dtype, (len(asks.verified_id), asks.feature_size), b"".join(asks.features)))
        stop = 0
        numbers, trees = [], []
        for i, session in enumerate(asks.session):
            start, stop = stop, stop + asks.num_tokens[i]
            held = self.sessions.get(session)
            if held is None:
                continue
            base = asks.base_committed_len[i]
            assert base == len(held.tokens), f"rows from {base} on, and the draft holds {len(held.tokens)}"
            self.asks.append((session, base, stop - start))
            held.tokens += asks.verified_id[start:stop]
            held.features.append(hidden[start:stop])
            if self.silent:
                continue
            numbers.append(session)
            tree = self.propose(held, asks.shapes[i])
            trees.append(ArrivedTree(asks.round[i], len(held.tokens), nodes_of(tree)))
        if numbers:
            self.loop.put(TreesArrived(self.at, numbers, trees))


@dataclass(slots=True)
class HeadProposer:
    """The real head, from all rows that the session holds: no state that could go stale."""

    drafter: Drafter
    allocator: PageAllocator

    def __call__(self, held: Held, shape: TreeShape) -> DraftTree:
        table = PageTable(self.allocator)
        try:
            table.reserve(len(held.tokens) + 64)
            params = ProposeParams.of(shape, seed=held.params.seed, temperature=held.params.temperature)
            tokens = np.array(held.tokens, np.int32)
            (tree,) = self.drafter.extend([ExtendItem(table, 0, tokens, held.rows, params)])
        finally:
            table.close()
        assert tree is not None
        return tree


@dataclass(slots=True)
class Prophet:
    """Proposes the tokens that plain decoding gave, hidden in trees of random form. futures: by the prompt's rest."""

    texts: Sequence[Sequence[int]]  # prompt and output of each request that it is asked for
    rng: np.random.Generator
    vocab_size: int

    def __call__(self, held: Held, shape: TreeShape) -> DraftTree:
        so_far = held.tokens
        text = next(text for text in self.texts if list(text[1 : len(so_far) + 1]) == so_far)
        future = list(text[len(so_far) + 1 :])[: int(self.rng.integers(0, shape.num_steps + 1))]
        tokens, parents, at = [so_far[-1]], [-1], 0
        while len(tokens) < shape.num_draft_tokens:
            is_true = bool(future) and self.rng.random() < 0.5
            parent = at if is_true else int(self.rng.integers(len(tokens)))
            token = future[0] if is_true else int(self.rng.integers(3, self.vocab_size))
            siblings = [t for t, p in zip(tokens, parents, strict=True) if p == parent]
            if token in siblings:
                if is_true:
                    at = next(
                        i for i, (t, p) in enumerate(zip(tokens, parents, strict=True)) if (t, p) == (token, parent)
                    )
                    future.pop(0)
                continue
            tokens.append(token)
            parents.append(parent)
            if is_true:
                at = len(tokens) - 1
                future.pop(0)
        return DraftTree(np.array(tokens), np.array(parents))
