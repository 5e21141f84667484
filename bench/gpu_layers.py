"""Times a whole step of a model without attention on a GPU: all layers and the logits in one CUDA graph.

    python -m bench.gpu_layers --shapes 8b default --rows 1 4 8 16 32 64

By products from cuBLAS or Triton, with and without kernels that start while the one before ends. The limit is the time
that the weights take at 4.3 TB/s.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from bench.gpu_op_cases import SHAPES, ModelShape
from bench.gpu_timer import graph_us
from kernels.ops import Ops
from kernels.triton_ops.linear import MAX_ROWS
from kernels.triton_ops.ops import TritonOps

_BYTES_PER_MS = 4.3e9
_EPS = 1e-5


@dataclass(frozen=True, slots=True)
class Layer:
    """Random weights of one layer."""

    qkv: Tensor
    output: Tensor
    gate_up: Tensor
    down: Tensor

    @classmethod
    def make(cls, shape: ModelShape) -> Self:
        return cls(*(_random(*shape.weights[name]) for name in cls.__slots__))


class Step:
    """A step of ``rows`` rows through layers, each with a KV cache of that many slots."""

    def __init__(self, shape: ModelShape, layers: list[Layer], head: Tensor, *, rows: int) -> None:
        self._shape = shape
        self._layers = layers
        self._head = head
        self._norm = torch.ones(shape.hidden, dtype=torch.bfloat16, device="cuda")
        self._residual = _random(rows, shape.hidden)
        self._cos_sin = torch.rand(rows, shape.head_dim, device="cuda")
        self._slots = torch.arange(rows, device="cuda")
        self._caches = [_random(rows, shape.kv_heads, shape.head_dim) for _ in range(2)]

    def run(self, ops: Ops) -> Tensor:
        s = self._shape
        residual = self._residual.clone()
        added = residual
        for layer in self._layers:
            x = ops.add_rms_norm(added, residual, self._norm, _EPS)
            qkv = ops.linear(x, layer.qkv).view(len(x), -1, s.head_dim)
            q, k, v = qkv.split_with_sizes([s.heads, s.kv_heads, s.kv_heads], dim=1)
            q = ops.rope_append(q, k, v, self._cos_sin, self._slots, *self._caches)
            x = ops.linear(q.flatten(1), layer.output)
            x = ops.add_rms_norm(x, residual, self._norm, _EPS)
            added = ops.linear(ops.silu_mul(ops.linear(x, layer.gate_up)), layer.down)
        return ops.logits(ops.add_rms_norm(added, residual, self._norm, _EPS), self._head)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", choices=SHAPES, nargs="+", default=list(SHAPES))
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8, 16, 32, 64])
    parser.add_argument("--json", type=Path, help="file for the same figures")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        parser.exit(1, "bench.gpu_layers: no CUDA device here\n")
    backends = {
        "cuBLAS": TritonOps("cuda", overlap=False, skinny_rows=0),
        "cuBLAS, overlap": TritonOps("cuda", overlap=True, skinny_rows=0),
        "Triton": TritonOps("cuda", overlap=False, skinny_rows=MAX_ROWS),
        "Triton, overlap": TritonOps("cuda", overlap=True, skinny_rows=MAX_ROWS),
    }
    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}; ms\n| model | rows | {' | '.join(backends)} | limit |")
    print("|---" * (len(backends) + 3) + "|")
    lines = []
    for model in args.shapes:
        shape = SHAPES[model]
        layers, head = [Layer.make(shape) for _ in range(shape.layers)], _random(shape.vocab, shape.hidden)
        weights = [getattr(layer, part) for layer in layers for part in Layer.__slots__]
        limit_ms = sum(weight.nbytes for weight in [*weights, head]) / _BYTES_PER_MS
        for rows in args.rows:
            step = Step(shape, layers, head, rows=rows)
            ms = {backend: _ms(step, ops) for backend, ops in backends.items()}
            figures = " | ".join(f"{time:.3f}" for time in [*ms.values(), limit_ms])
            print(f"| {model} | {rows} | {figures} |", flush=True)
            lines.append({"model": model, "rows": rows, "ms": ms, "limit_ms": limit_ms})
    if args.json:
        args.json.write_text(json.dumps({"device": name, "torch": torch.__version__, "lines": lines}, indent=1) + "\n")


def _ms(step: Step, ops: Ops) -> float:
    with torch.inference_mode():
        return graph_us(lambda _: step.run(ops), uses=1) * 1e-3


def _random(*shape: int) -> Tensor:
    return (torch.randn(shape, device="cuda") * shape[-1] ** -0.5).bfloat16()


if __name__ == "__main__":
    main()
