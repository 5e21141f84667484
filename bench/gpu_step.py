"""Times a target's step on a GPU: as a captured graph, launched kernel by kernel, and what the host spends on it.

    paceline inflate /tmp/8b --shape llama-8b --lazy
    python -m bench.gpu_step --model-path /tmp/8b/target --head-path /tmp/8b/head --mixes 1x1 1x16 64x1 256x1

A mix BxN is B requests with a tree of N nodes each, BxcN B requests with a prompt chunk of N tokens; "+" joins mixes in
one step. Each figure is the median of ``--repeats``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from engine.pages import PageAllocator, PageTable, pages_for
from engine.plan import StepBuilder, StepPlan
from engine.pool import TargetCache
from engine.target_model import TargetModel
from engine.tp import TpGroup
from engine.wire import dtype_named
from kernels.backends import load_ops
from paceline.defaults import DEFAULT_HEAD_PATH, DEFAULT_MODEL_PATH
from paceline.logs import set_up_logging
from paceline.tree import DraftTree

_PAGE_SIZE = 16
_MIXES = ["1x1", "1x8", "1x16", "1x64", "8x1", "8x8", "32x1", "64x1", "64x4", "128x1", "256x1", "1xc512", "64x1+1xc448"]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-path", type=Path, default=Path(DEFAULT_MODEL_PATH))
    parser.add_argument("--head-path", type=Path, default=Path(DEFAULT_HEAD_PATH))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--kernel-backend", default="auto")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--mixes", nargs="+", default=_MIXES)
    parser.add_argument("--kv-len", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--max-rows", type=int, default=1024)
    args = parser.parse_args(argv)
    set_up_logging("bench.gpu_step", level="info")

    device = torch.device(args.device)
    ops = load_ops(args.kernel_backend, device)
    model = TargetModel.load(
        args.model_path,
        head_path=args.head_path,
        dtype=dtype_named(args.dtype),
        ops=ops,
        device=device,
        tp=TpGroup(),
    )
    plans = {mix: _plan(mix, args.kv_len) for mix in args.mixes}
    num_pages = max(int(plan.attention.page_ids.max()) for plan in plans.values()) + 1
    cache = model.make_cache(num_pages, _PAGE_SIZE)
    eager = {mix: _step_ms(model, plan, cache, args.repeats) for mix, plan in plans.items()}
    model.capture(cache, args.max_rows)
    name = torch.cuda.get_device_name(device)
    print(f"{args.model_path}, {args.dtype}, {ops.name} kernels, {args.kv_len} tokens of KV, {name}")
    print("| mix | rows | nodes | graph: ms | launches: ms | host, graph: us |\n|---|---|---|---|---|---|")
    for mix, plan in plans.items():
        graph_ms = _step_ms(model, plan, cache, args.repeats)
        host_us = _host_us(model, plan, cache, args.repeats)
        sizes = f"{plan.num_rows} | {len(plan.logit_rows)}"
        print(f"| {mix} | {sizes} | {graph_ms:.3f} | {eager[mix]:.3f} | {host_us:.0f} |", flush=True)


def _plan(mix: str, kv_len: int) -> StepPlan:
    """Every request has kv_len tokens in the pool, and pages of its own."""
    builder = StepBuilder(_PAGE_SIZE)
    groups = [group.split("x") for group in mix.split("+")]
    requests = [size for count, size in groups for _ in range(int(count))]
    lengths = [int(size.removeprefix("c")) for size in requests]
    allocator = PageAllocator(sum(pages_for(kv_len + length, _PAGE_SIZE) for length in lengths), _PAGE_SIZE)
    for size, length in zip(requests, lengths, strict=True):
        table = PageTable(allocator)
        table.reserve(kv_len + length)
        if size.startswith("c"):
            builder.add_chunk(table, np.arange(length, dtype=np.int32), kv_len, sample=True)
        else:
            builder.add_tree(table, DraftTree.chain(list(range(length))), kv_len)
    return builder.build()


def _step_ms(model: TargetModel, plan: StepPlan, cache: TargetCache, repeats: int) -> float:
    """From the start of the host's work to the end of the device's, one step after the other."""

    def step() -> None:
        model.step(plan, cache)
        torch.cuda.synchronize(model.device)

    return _median_ms(step, repeats)


def _host_us(model: TargetModel, plan: StepPlan, cache: TargetCache, repeats: int) -> float:
    """Of the host alone, with an idle device."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        model.step(plan, cache)
        times.append(time.perf_counter() - started)
        torch.cuda.synchronize(model.device)
    return statistics.median(times) * 1e6


def _median_ms(run: Callable[[], None], repeats: int) -> float:
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e3


if __name__ == "__main__":
    main()
