"""The ops of a step at the shapes of a model: what to call, and the bytes that it has to move."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kernels.ops import Ops

COLD_BYTES = 256 << 20  # copies of a weight add up to this: 5 times the L2 cache of an H200
_NUM_AUX = 3
_MOVES_PER_REQUEST = 3
_TREE_NODES = 16  # rows of a tree: fewer rows than that move nothing
_EPS = 1e-5


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a target; the head has its hidden size."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    layers: int
    vocab: int = 49152
    draft_vocab: int = 16384

    @property
    def weights(self) -> dict[str, tuple[int, int]]:
        """Those of one layer, of the feature fusion, and of the target's and the head's logits: [out, in]."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "qkv": (q + 2 * kv, self.hidden),
            "output": (self.hidden, q),
            "gate_up": (2 * self.inner, self.hidden),
            "down": (self.hidden, self.inner),
            "fc": (self.hidden, _NUM_AUX * self.hidden),
            "logits": (self.vocab, self.hidden),
            "draft logits": (self.draft_vocab, self.hidden),
        }

    @property
    def head_weights(self) -> dict[str, tuple[int, int]]:
        """All matrices of the head: [out, in]."""
        weights = self.weights
        layer = {f"draft {name}": weights[name] for name in ("output", "gate_up", "down")}
        return {"draft qkv": (weights["qkv"][0], 2 * self.hidden), **layer, "draft logits": weights["draft logits"]}


SHAPES = {
    "8b": ModelShape(hidden=4096, heads=32, kv_heads=8, head_dim=128, inner=14336, layers=32),
    "default": ModelShape(hidden=576, heads=9, kv_heads=3, head_dim=64, inner=1536, layers=30),
}


@dataclass(frozen=True, slots=True)
class OpCase:
    """num_bytes: what one use must read and write; uses: how many to time in a row; call(i): the i-th of them."""

    shape: str
    num_bytes: int
    uses: int
    call: Callable[[int], object]


class OpCases:
    """The cases of one model at one number of rows, on random tensors of bf16 that are made when a case is taken."""

    def __init__(self, shape: ModelShape, rows: int, ops: Ops, *, device: torch.device) -> None:
        self._shape = shape
        self._rows = rows
        self._device = device
        self._ops = ops

    def take(self, prefixes: Sequence[str] = ("",)) -> Iterator[tuple[str, OpCase]]:
        """Name and case of the ops whose name begins with one of the prefixes."""
        makers: dict[str, Callable[[], OpCase]] = {
            "rms_norm": self._rms_norm,
            "add_rms_norm": self._add_rms_norm,
            "add_rms_norm, capture": self._capture,
            "silu_mul": self._silu_mul,
            "rope_append": self._rope_append,
            "embed": self._embed,
            "scatter_rows": self._scatter_rows,
        }
        if self._rows >= _TREE_NODES:
            makers["move_rows"] = self._move_rows
        for name, (num_out, width) in self._shape.weights.items():
            is_logits = name.endswith("logits")
            product = self._ops.logits if is_logits else self._ops.linear
            makers[name if is_logits else f"linear {name}"] = partial(self._product, product, num_out, width)
        for name, make in makers.items():
            if name.startswith(tuple(prefixes)):
                yield name, make()

    def _rms_norm(self) -> OpCase:
        x, weight = self._random(self._rows, self._shape.hidden), self._random(self._shape.hidden)
        return self._case(f"{x.shape[1]}", 2 * x.nbytes, lambda _: self._ops.rms_norm(x, weight, _EPS))

    def _add_rms_norm(self) -> OpCase:
        hidden = self._shape.hidden
        x, residual, weight = self._random(self._rows, hidden), self._random(self._rows, hidden), self._random(hidden)
        return self._case(f"{hidden}", 4 * x.nbytes, lambda _: self._ops.add_rms_norm(x, residual, weight, _EPS))

    def _capture(self) -> OpCase:
        hidden = self._shape.hidden
        x, residual, weight = self._random(self._rows, hidden), self._random(self._rows, hidden), self._random(hidden)
        aux = self._random(self._rows, _NUM_AUX * hidden)[:, :hidden]
        return self._case(
            f"{hidden}",
            5 * x.nbytes,
            lambda _: self._ops.add_rms_norm(x, residual, weight, _EPS, capture=aux),
        )

    def _silu_mul(self) -> OpCase:
        inner = self._shape.inner
        gate_up = self._random(self._rows, 2 * inner)
        return self._case(f"2 x {inner}", gate_up.nbytes * 3 // 2, lambda _: self._ops.silu_mul(gate_up))

    def _rope_append(self) -> OpCase:
        s = self._shape
        q, k, v = self._random(self._rows, s.heads + 2 * s.kv_heads, s.head_dim).split_with_sizes(
            [s.heads, s.kv_heads, s.kv_heads], dim=1
        )
        cos_sin = torch.rand(self._rows, s.head_dim, device=q.device)
        slots = torch.randperm(2 * self._rows, device=q.device)[: self._rows]
        k_cache, v_cache = (self._random(2 * self._rows, s.kv_heads, s.head_dim) for _ in range(2))
        return self._case(
            f"{s.heads} + 2 x {s.kv_heads} heads of {s.head_dim}",
            2 * (q.nbytes + k.nbytes + v.nbytes) + cos_sin.nbytes,
            lambda _: self._ops.rope_append(q, k, v, cos_sin, slots, k_cache, v_cache),
        )

    def _embed(self) -> OpCase:
        s = self._shape
        table = self._random(s.vocab, s.hidden)
        ids = torch.randint(s.vocab, (self._rows,), device=table.device)
        num_bytes = 2 * self._rows * s.hidden * table.itemsize
        return self._case(f"{s.vocab} x {s.hidden}", num_bytes, lambda _: self._ops.embed(ids, table))

    def _scatter_rows(self) -> OpCase:
        rows = self._random(self._rows, self._shape.hidden)
        pool = self._random(4 * self._rows, self._shape.hidden)
        slots = torch.randperm(len(pool), device=pool.device)[: self._rows]
        return self._case(
            f"{self._shape.hidden}",
            2 * rows.nbytes,
            lambda _: self._ops.scatter_rows(pool, slots, rows),
        )

    def _move_rows(self) -> OpCase:
        """Each tree of 16 nodes moves 3 of them down, in the KV pools of all layers and in the features."""
        s = self._shape
        num_trees = self._rows // _TREE_NODES
        pools = [self._random(4 * self._rows, s.kv_heads, s.head_dim) for _ in range(2 * s.layers)]
        pools.append(self._random(4 * self._rows, s.hidden))
        base = 4 * _TREE_NODES * torch.arange(num_trees, device=pools[0].device)[:, None]
        src = (base + torch.tensor([2, 5, 9], device=base.device)).flatten()
        dst = (base + torch.tensor([1, 2, 3], device=base.device)).flatten()
        num_bytes = 2 * _MOVES_PER_REQUEST * num_trees * sum(pool[0].nbytes for pool in pools)
        return self._case(
            f"{len(src)} pairs in {len(pools)} pools",
            num_bytes,
            lambda _: self._ops.move_rows(pools, src, dst),
        )

    def _product(self, product: Callable[[Tensor, Tensor], Tensor], num_out: int, width: int) -> OpCase:
        """Enough copies of the weight take turns that none is in the L2 cache when it is used."""
        copies = max(2, -(-COLD_BYTES // (2 * num_out * width)))
        x = self._random(self._rows, width)
        weights = [self._ops.prepare_weight(self._random(num_out, width)) for _ in range(copies)]
        out = product(x, weights[0])
        return OpCase(
            shape=f"{num_out} x {width}",
            num_bytes=weights[0].nbytes + x.nbytes + out.nbytes,
            uses=max(20, copies),
            call=lambda i: product(x, weights[i % copies]),
        )

    def _case(self, shape: str, num_bytes: int, call: Callable[[int], object]) -> OpCase:
        return OpCase(shape, num_bytes, uses=50, call=call)

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.bfloat16, device=self._device)
