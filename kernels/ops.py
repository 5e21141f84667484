"""The op contract: every op's shapes, dtypes and what it mutates.

A backend is one object, made once and passed down. ``reference`` (torch, any device) is the oracle for
the others. Notation: rows = all query rows of a step, b = requests, V = vocabulary, H = hidden size.

Integer arrays that a step is planned from are numpy on the host; a backend copies them to its device once,
in ``plan_attention``. Shapes of everything that a layer touches depend on the row count alone, so that a
backend may pad rows to buckets and replay a captured graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from kernels.growth import GrowingTrees
from kernels.head import Head, HeadWeights
from kernels.unit_rule import UnitRule
from kernels.upload import Upload


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """Who attends to what in one step, for prefill chunks and trees together.

    The KV of request r is its positions [0, prefix_len[r] + local_len[r]), found through its pages. Every
    row of r sees [0, prefix_len[r]). The local part [prefix_len, prefix_len + local_len) includes the KV
    written by this step's own rows, which are always its **last** q_len positions: row i of the request
    has written local index local_len - q_len + i. A causal request's row sees the local indices up to and
    including its own; a tree request's row sees local index j where bit j of ``ancestors`` is set (its own
    bit included), and so has local_len <= 64.
    """

    q_indptr: np.ndarray  # [b + 1] int32, rows of request r are [q_indptr[r], q_indptr[r + 1])
    prefix_len: np.ndarray  # [b] int32
    local_len: np.ndarray  # [b] int32, >= q_len
    page_indptr: np.ndarray  # [b + 1] int32, into page_ids
    page_ids: np.ndarray  # [sum of pages] int32, in order of position
    is_causal: np.ndarray  # [b] bool
    ancestors: np.ndarray  # [rows] uint64, 0 where the request is causal
    page_size: int
    batch_invariant: bool = False


class AttentionPlan(Protocol):
    """One step's plan; the same for all layers. Valid until the backend's next ``plan_attention``."""

    def run(self, q: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        """Attention of all rows, scaled by head_dim ** -0.5.

        q: [rows, heads, head_dim]; k_cache, v_cache: [slots, kv_heads, head_dim], where slot = page *
        page_size + offset; heads is a multiple of kv_heads (grouped-query). Returns [rows, heads, head_dim]
        of q's dtype. Mutates nothing.
        """
        ...


@dataclass(frozen=True, slots=True)
class AttentionLimits:
    """What AttentionBuffers must hold at most, and the heads of this rank, which shape its workspace."""

    max_rows: int
    max_requests: int
    max_pages: int  # of all requests together, a page that two of them share counting twice
    page_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


class AttentionBuffers(Protocol):
    """Memory of plans that outlive a step: its addresses never change, so that a captured graph may be replayed.

    The tensors lie on the device and hold the last loaded batch, as AttentionBatch says; what lies past it is stale.
    Device code may overwrite prefix_len, local_len and ancestors after a ``load``, in stream order, as long as every
    local part still ends within the request's loaded pages.
    """

    limits: AttentionLimits
    ahead: Upload  # its first bytes are the caller's, as many as ``attention_buffers`` was asked for
    prefix_len: Tensor  # [max_requests] int32
    local_len: Tensor  # [max_requests] int32
    ancestors: Tensor  # [max_rows] int64, the bit patterns of uint64
    q_indptr: Tensor  # [max_requests + 1] int32
    page_indptr: Tensor  # [max_requests + 1] int32
    page_ids: Tensor  # [max_pages] int32

    @property
    def variants(self) -> tuple[int, ...]:
        """The kernels to choose from, ascending: how many rows of a request share one tile. Each fits every batch."""
        ...

    def load(self, batch: AttentionBatch, variant: int | None = None, *, start: int | None = None) -> int:
        """MUTATES the buffers, in stream order and without a wait: the host arrays are read before it returns.

        start: the bytes from there to the caller's last are sent as well, by the same copy; they are what
        ``ahead.stage`` gave and nobody sent. None: there are none.
        Returns the variant to run until the next ``load``: the one asked for, or else the fastest for the batch.
        Raises ValueError past the limits, for an unknown variant, and for a batch_invariant batch, which has to
        take ``plan_attention``.
        """
        ...

    def plan(self, num_rows: int, variant: int) -> AttentionPlan:
        """A plan for num_rows rows, at least the rows of the batches loaded while it runs; those past them become 0.

        It stays valid as long as the buffers, and launches the same grid whatever is loaded. Its first ``run`` for a
        dtype compiles, so let one pass before a capture. Plans of the same buffers share a workspace: run them in
        stream order.
        """
        ...


@dataclass(frozen=True, slots=True)
class AttentionTables:
    """An AttentionBatch on the device, at addresses that its owner fills before each run. What lies past it is stale.

    Unlike the batch's, page_indptr may begin past 0.
    """

    counts: Tensor  # [3] int32: units, rows, requests
    units: Tensor  # [4 * units] int32, as ``kernels.round_tables`` makes them by the planner's rule
    q_indptr: Tensor  # [requests + 1] int32
    prefix_len: Tensor  # [requests] int32
    local_len: Tensor  # [requests] int32
    is_causal: Tensor  # [requests] int32, 0 or 1
    ancestors: Tensor  # [rows] int64, the bit patterns of uint64
    page_indptr: Tensor  # [requests + 1] int32
    page_ids: Tensor  # [pages] int32


class AttentionPlanner(Protocol):
    """Plans over tables that somebody else owns. They share a workspace: run them in stream order."""

    limits: AttentionLimits
    rule: UnitRule

    def plan(self, tables: AttentionTables, num_rows: int, variant: int) -> AttentionPlan:
        """As ``AttentionBuffers.plan``. variant: one of the rule's rows, by which the tables' units are made."""
        ...


@dataclass(frozen=True, slots=True)
class TreeBatch:
    """The trees of a step in verify order; a plain decode or the last row of a prompt is one node."""

    node_indptr: np.ndarray  # [b + 1] int32, into the node arrays below
    tokens: np.ndarray  # [nodes] int32, root first
    positions: np.ndarray  # [nodes] int32
    first_child: np.ndarray  # [nodes] int32, local index, -1 where none
    next_sibling: np.ndarray  # [nodes] int32, local index, -1 where none


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """How each request of a TreeBatch samples. temperature 0 is greedy, and then the rest is ignored."""

    seed: np.ndarray  # [b] uint64
    temperature: np.ndarray  # [b] float32, >= 0
    top_k: np.ndarray  # [b] int32, 0 = all
    top_p: np.ndarray  # [b] float32, (0, 1]
    min_p: np.ndarray  # [b] float32, [0, 1]
    token_bitmask: Tensor | None = None  # [nodes, ceil(V / 32)] int32, bit set = allowed; None = all
    bias_indptr: np.ndarray | None = None  # [nodes + 1] int32: sparse additive logit terms per node
    bias_token: np.ndarray | None = None  # [terms] int32
    bias_value: np.ndarray | None = None  # [terms] float32, added before temperature


@dataclass(frozen=True, slots=True)
class WalkResult:
    """What a verify decided. All on the host."""

    accept_length: np.ndarray  # [b] int32, accepted drafts WITHOUT the extra token
    accepted_indices: np.ndarray  # [sum(accept_length + 1)] int32, flat nodes of the path, root first
    verified_id: np.ndarray  # [sum(accept_length + 1)] int32, accepted tokens, the new one last


@dataclass(frozen=True, slots=True)
class WalkLimits:
    """The largest walks of a service."""

    max_nodes: int
    max_requests: int
    vocab_size: int


class PendingWalk(Protocol):
    """A walk under way on the device. An ops object may have two at once, whose results are asked for in order."""

    def is_ready(self) -> bool:
        """Whether ``result`` would not wait."""
        ...

    def result(self) -> WalkResult:
        """Waits for it. To be asked before ``start_walk`` is called twice more, which reuses its buffers."""
        ...

    def first_tokens(self) -> Tensor:
        """[b], integers: what each tree's root drew, for work in the same stream. It waits for nothing on a device.

        Valid until ``start_walk`` is called twice more.
        """
        ...


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """RMS norms over each head of q and k, before the rotation."""

    q: Tensor  # [head_dim]
    k: Tensor  # [head_dim]
    eps: float


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """Of one layer on one rank; matrices are prepared."""

    qkv: Tensor  # [(heads + 2 * kv_heads) * head_dim, input size]
    output: Tensor  # [hidden size, heads * head_dim]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    qkv_bias: Tensor | None = None
    output_bias: Tensor | None = None
    norms: HeadNorms | None = None


class Ops(Protocol):
    """A backend. All tensors lie on ``device``; floating tensors share one dtype unless it says fp32."""

    name: str

    @property
    def supports_graphs(self) -> bool:
        """Whether a CUDA graph may hold a step: its ops neither wait for the device nor read the host."""
        ...

    def prepare_weight(self, weight: Tensor) -> Tensor:
        """The weight [out, in] in whatever layout ``linear`` of this backend wants; called once at load."""
        ...

    def prepare_draft_weight(self, weight: Tensor) -> Tensor:
        """``prepare_weight`` of a draft head, which only guesses: a backend may round it, for it to be read faster."""
        ...

    def rounded_bytes(self, weight: Tensor) -> int:
        """Memory of the rounded copy that a prepared weight keeps beside itself; 0 where it has none."""
        ...

    def prepare_head(self, weights: HeadWeights) -> Head:
        """The head whose matrices were prepared by this backend."""
        ...

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [rows, in] @ weight[out, in].T + bias -> [rows, out]. The door of matrix products, with ``logits``."""
        ...

    def logits(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [rows, in] @ weight[out, in].T -> [rows, out] fp32, not rounded on the way where the backend can."""
        ...

    def embed(self, ids: Tensor, table: Tensor) -> Tensor:
        """table[ids]: ids [rows] int64, table [V, H] -> [rows, H]. It gathers rows of any contiguous matrix."""
        ...

    def fill_drawn(self, tokens: Tensor, drawn: Tensor) -> None:
        """MUTATES tokens [rows] int64: one of -1 - i becomes drawn[i]. drawn: integers, as ``first_tokens`` gives."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / sqrt(mean(x^2) + eps) * weight over the last dimension; statistics in fp32, result in x's dtype."""
        ...

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, capture: Tensor | None = None
    ) -> Tensor:
        """MUTATES residual += x, and capture = the sum where it is given; returns rms_norm(residual).

        x, residual, capture: [rows, H]; rows of x and capture may lie apart.
        """
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up: gate_up [rows, 2 * I], gate first -> [rows, I]."""
        ...

    def rope(self, q: Tensor, k: Tensor, cos_sin: Tensor) -> None:
        """Rotates q [rows, heads, d] and k [rows, kv_heads, d] IN PLACE by halves (Hugging Face's layout).

        cos_sin: [rows, d] fp32, cos of d / 2 frequencies, then sin.
        """
        ...

    def append_kv(self, k: Tensor, v: Tensor, slots: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
        """MUTATES k_cache[slots] = k, v_cache[slots] = v. k, v: [rows, kv_heads, d]; slots: [rows] int64."""
        ...

    def rope_append(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cos_sin: Tensor,
        slots: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        *,
        norms: HeadNorms | None = None,
    ) -> Tensor:
        """The norms, ``rope``, then ``append_kv``: returns the rotated q [rows, heads, d].

        MUTATES k_cache and v_cache at the slots. May mutate q and k, and may return q itself: read neither afterwards.
        """
        ...

    def attention_block(
        self,
        x: Tensor,
        weights: AttentionWeights,
        plan: AttentionPlan,
        *,
        cos_sin: Tensor,
        slots: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
    ) -> Tensor:
        """A layer's attention: linear to q, k and v, ``rope_append``, the plan's run, linear to the output.

        x: [rows, input size] -> [rows, hidden size]. MUTATES k_cache and v_cache at the slots.
        """
        ...

    def mlp(self, x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        """``linear``, ``silu_mul``, ``linear``: x [rows, H] -> [rows, H]. gate_up: [2 * I, H]; down: [H, I]."""
        ...

    def plan_attention(self, batch: AttentionBatch) -> AttentionPlan:
        """Once a step; copies the batch's arrays to the device."""
        ...

    def attention_buffers(self, limits: AttentionLimits, *, num_ahead: int = 0) -> AttentionBuffers:
        """Allocates them. They can be captured where ``supports_graphs``; elsewhere they plan anew in every run.

        num_ahead: bytes for the caller's own use, a multiple of 8, that may travel with a ``load``.
        """
        ...

    def attention_planner(self, limits: AttentionLimits) -> AttentionPlanner:
        """What ``attention_buffers`` is, less the tables."""
        ...

    def move_rows(self, pools: list[Tensor], src: Tensor, dst: Tensor) -> None:
        """MUTATES pool[dst] = pool[src] in each pool [slots, ...]; src, dst: [n] int64 of slots.

        They may overlap as a compaction's do: no slot that a pair writes is read by a later pair, or written again.
        Pairs with src == dst move nothing, so that padding may repeat them.
        """
        ...

    def scatter_rows(self, pool: Tensor, slots: Tensor, rows: Tensor) -> None:
        """MUTATES pool[slots] = rows: pool [slots, width], slots [n] int64 without repeats, rows [n, width]."""
        ...

    def prepare_walk(self, limits: WalkLimits) -> None:
        """Before traffic: takes buffers and compiles kernels, so that no walk within the limits has to."""
        ...

    def start_walk(self, logits: Tensor, trees: TreeBatch, sampling: SamplingBatch) -> PendingWalk:
        """Sample, then walk: draws the target's token at the current node; a child that carries it is accepted.

        logits: [nodes, V] fp32, in the TreeBatch's node order; they may be overwritten once ``result`` returned. The
        draw of the token at position t is argmax over allowed v of (logit_v / temperature + gumbel(seed, t, v)); ties
        go to the lowest id. The filters act in the order temperature, top-k, top-p on what is left, min-p. Exact for
        any tree: every emitted token was drawn from the target given its path. Host arrays are read before it returns.
        """
        ...

    def known_walk(self, trees: TreeBatch, walk: WalkResult) -> PendingWalk:
        """A walk of one tree that is over and came to this: on the host, and read by the code that reads any walk's.

        Launches nothing. Valid until the next one is asked for.
        """
        ...

    def gumbel(self, seeds: np.ndarray, positions: np.ndarray, ids: Tensor) -> Tensor:
        """Noise g(seed, position, id). seeds [n] uint64, positions [n] int32, ids [m] or [n, m] int64 -> [n, m] fp32.

        Philox4x32-10 (Salmon et al., SC'11): key = seed's two halves, counter = (id // 4, position, 0, 0),
        word id % 4 = x, u = ((x >> 9) + 0.5) * 2^-23, g = -log(-log(u)) in fp32. Equal in all backends up to the
        logarithm's last bit.
        """
        ...

    def top_k(self, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k largest of scores [rows, n], descending, ties to the lowest index: values, int64 indices, [rows, k]."""
        ...

    def gumbel_rows(self, seeds: Tensor, positions: Tensor, ids: Tensor) -> Tensor:
        """``gumbel`` of arrays on the device, fit for a captured graph: [n, m] fp32.

        seeds: [n] int64, the bit patterns of uint64; positions: [n] int32 or int64, below 2^31; ids: [n, m] int64.
        """
        ...

    def top_k_log_probs(self, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """``top_k`` with log_softmax(scores)'s values, of the whole row: values, int64 indices, [rows, k]."""
        ...

    def grow_beam(self, trees: GrowingTrees, log_probs: Tensor, draft_ids: Tensor, level: int) -> None:
        """MUTATES trees.candidates: each beam node's topk best children, and those of them that the next beam takes.

        log_probs fp32 descending, draft_ids int64: [b, topk] of the roots at level 0, then [b * topk, topk] in the
        order of the last beam's rows. The next beam is the topk best children of the level, by (path's score
        descending, index), and goes to trees.rows, unless this is the last level. A score that is not finite counts as
        -inf, and an id outside the draft vocabulary as its nearest.
        """
        ...

    def choose_nodes(self, trees: GrowingTrees) -> None:
        """MUTATES trees.nodes: the num_nodes - 1 best candidates by (score descending, index), in order of index.

        Fewer where fewer have a finite score; the entries past them are -1. An index grows with the depth, so that a
        node never comes without its parent, nor before it.
        """
        ...
