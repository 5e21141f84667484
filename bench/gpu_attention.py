"""Times the attention kernels on a GPU, one step's shape after another, and compares them with what memory allows.

    python -m bench.gpu_attention
    python -m bench.gpu_attention --sweep narrow --shapes decode-1-200 decode-256-200
    python -m bench.gpu_attention --backend flashinfer

Calls of one graph take turns on caches of several layers, more than the L2 holds, as a model's layers do. The limit is
the time that one read of every request's KV, the queries and the results take; load is the host's time for a batch. A
star marks the variant that the rule takes.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from bench.attention_shapes import SHAPES, AttentionShape, make_batch
from bench.gpu_timer import graph_us
from kernels.backends import load_ops
from kernels.ops import AttentionBatch, AttentionLimits, AttentionPlan
from kernels.triton_ops.attention_buffers import TritonAttentionBuffers
from kernels.triton_ops.attention_tuning import AttentionTuning, TileTuning

_H200_TB_S = 4.3  # what weights stream at on one H200, see docs/performance.md
_MIN_CACHE_BYTES = 256 << 20  # of all layers, several times the L2
_MAX_LAYERS = 320
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_LOADS = 200


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", choices=SHAPES, nargs="+", default=list(SHAPES))
    parser.add_argument("--heads", type=int, nargs=3, default=[32, 8, 128], metavar=("Q", "KV", "DIM"))
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--dtype", choices=_DTYPES, default="bf16")
    parser.add_argument("--backend", choices=("triton", "flashinfer"), default="triton")
    parser.add_argument("--sweep", choices=("narrow", "wide", "splits"), help="time other sizes than the defaults")
    parser.add_argument("--bandwidth-tb-s", type=float, default=_H200_TB_S, help="the limit")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        parser.exit(1, "bench.gpu_attention: no CUDA device here\n")
    heads = "{}/{} heads of {}".format(*args.heads)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {args.backend}, {args.dtype}, {heads}")
    print("| shape | sizes | variant | load: us | us | limit: us | share |\n|---|---|---|---|---|---|---|")
    for name in args.shapes:
        case = _Case(SHAPES[name], args)
        limit_us = case.num_bytes / args.bandwidth_tb_s / 1e6
        for label, variant, load_us, us in (
            _eager(case) if args.backend == "flashinfer" else _buffered(case, args.sweep)
        ):
            share = f"{limit_us / us:.0%}"
            print(f"| {name} | {label} | {variant} | {load_us:.0f} | {us:.2f} | {limit_us:.2f} | {share} |", flush=True)


class _Case:
    """One shape with its batch, queries and as many layers of KV as the L2 does not hold."""

    def __init__(self, shape: AttentionShape, args: argparse.Namespace) -> None:
        dtype = _DTYPES[args.dtype]
        num_heads, num_kv_heads, head_dim = args.heads
        self.batch: AttentionBatch = make_batch(shape, args.page_size)
        self.num_rows = int(self.batch.q_indptr[-1])
        self.limits = AttentionLimits(
            max_rows=self.num_rows,
            max_requests=len(self.batch.prefix_len),
            max_pages=len(self.batch.page_ids),
            page_size=args.page_size,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
        )
        slots = len(self.batch.page_ids) * args.page_size
        layer_bytes = 2 * slots * num_kv_heads * head_dim * dtype.itemsize
        self.num_layers = max(2, min(_MAX_LAYERS, -(-_MIN_CACHE_BYTES // layer_bytes)))
        cache_shape = (self.num_layers, 2, slots, num_kv_heads, head_dim)
        self._caches = torch.randn(cache_shape, dtype=dtype, device="cuda")
        self._q = torch.randn(self.num_rows, num_heads + 2 * num_kv_heads, head_dim, dtype=dtype, device="cuda")
        self._q = self._q[:, :num_heads]
        kv_len = int((self.batch.prefix_len + self.batch.local_len).sum())
        values = 2 * kv_len * num_kv_heads * head_dim + 2 * self._q.numel()
        self.num_bytes = values * dtype.itemsize

    def buffers(self, tuning: AttentionTuning) -> TritonAttentionBuffers:
        return TritonAttentionBuffers(self.limits, self._q.device, tuning=tuning)

    def time(self, plan: AttentionPlan) -> float:
        """Microseconds of a run in a graph."""
        caches = list(self._caches)
        return graph_us(lambda i: plan.run(self._q, *caches[i % len(caches)]), uses=2 * self.num_layers)

    def run_once(self, plan: AttentionPlan) -> None:
        plan.run(self._q, *self._caches[0])


def _buffered(case: _Case, sweep: str | None) -> Iterator[tuple[str, str, float, float]]:
    """Sizes, the variant (a star: the one that the rule takes), microseconds of a load and of a run."""
    for label, tuning in _tunings(sweep):
        buffers = case.buffers(tuning)
        chosen = buffers.load(case.batch)
        variants = {"narrow": buffers.variants[:1], "wide": buffers.variants[-1:], "splits": (chosen,)}
        for variant in variants.get(sweep or "", buffers.variants):
            load_us = _host_us(partial(buffers.load, case.batch, variant))
            us = case.time(buffers.plan(case.num_rows, variant))
            yield label, f"{variant}{'*' * (variant == chosen)}", load_us, us


def _eager(case: _Case) -> Iterator[tuple[str, str, float, float]]:
    """The same of FlashInfer's eager plan, whose load is the planning and one launch."""
    ops = load_ops("flashinfer", "cuda")
    case.run_once(ops.plan_attention(case.batch))
    load_us = _host_us(lambda: case.run_once(ops.plan_attention(case.batch)))
    plan = ops.plan_attention(case.batch)
    case.run_once(plan)
    yield "flashinfer", "", load_us, case.time(plan)


def _host_us(call: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(_LOADS):
        call()
    return (time.perf_counter() - start) / _LOADS * 1e6


def _tunings(sweep: str | None) -> Iterator[tuple[str, AttentionTuning]]:
    """Names and sizes to time."""
    default = AttentionTuning()
    if sweep is None:
        yield "default", default
    elif sweep == "splits":
        for ctas, min_len in itertools.product((1, 2, 3), (128, 256, 512)):
            yield f"{ctas}/SM, from {min_len}", replace(default, split_ctas_per_sm=ctas, min_split_len=min_len)
    else:
        for tile in _NARROW_TILES if sweep == "narrow" else _WIDE_TILES:
            label = f"{tile.lanes} x {tile.block_kv}, {tile.num_warps} warps, {tile.num_stages} stages"
            label += ", fused" if tile.fused_combine else ""
            yield label, replace(default, narrow=tile) if sweep == "narrow" else replace(default, wide=tile)


_NARROW_TILES = [
    TileTuning(16, block, warps, stages, fused_combine=fused, max_ctas_per_sm=64)
    for block, warps, stages, fused in [
        (64, 4, 3, True),
        (64, 4, 3, False),
        (64, 4, 2, True),
        (64, 4, 4, True),
        (32, 4, 3, True),
        (32, 4, 4, True),
        (32, 2, 4, True),
        (32, 2, 3, True),
        (64, 2, 3, True),
        (64, 8, 3, True),
        (128, 4, 2, True),
        (128, 8, 2, True),
        (128, 8, 3, True),
    ]
]
_WIDE_TILES = [
    TileTuning(lanes, block, warps, stages, fused_combine=fused, max_ctas_per_sm=8)
    for lanes, block, warps, stages, fused in [
        (64, 32, 4, 3, False),
        (64, 32, 4, 4, False),
        (64, 64, 4, 2, False),
        (64, 64, 4, 3, False),
        (64, 64, 8, 2, False),
        (64, 64, 8, 3, False),
        (64, 128, 8, 2, False),
        (64, 32, 4, 3, True),
        (64, 64, 4, 2, True),
        (32, 32, 4, 3, False),
        (32, 64, 4, 3, True),
        (128, 64, 8, 2, False),
        (128, 64, 8, 3, False),
        (128, 128, 8, 2, False),
    ]
]


if __name__ == "__main__":
    main()
