"""Times a target step by rows and a draft's tree by shape, in this process, on the CPU with the default pair.

    GOMP_SPINCOUNT=10000 python -m bench.cpu_step --dtype bfloat16 --kv-len 200

Each figure is the minimum and the median of ``--repeats``. A target's step goes before each tree, untimed: it takes the
caches, as in a round.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from engine.drafter import Drafter, ExtendItem, ProposeParams
from engine.head_model import HeadModel
from engine.pages import PageAllocator, PageTable, pages_for
from engine.plan import StepBuilder
from engine.target_model import TargetModel
from engine.tp import TpGroup
from kernels.backends import load_ops
from paceline.defaults import DEFAULT_HEAD_PATH, DEFAULT_MODEL_PATH
from paceline.tree import DraftTree
from paceline.types import TreeShape

_PAGE_SIZE = 16
_SPARE_TOKENS = 128  # scratch of the largest tree, and its root
_SHAPES = [
    TreeShape(1, 1, 2),
    TreeShape(1, 3, 4),
    TreeShape(2, 3, 5),
    TreeShape(3, 1, 4),
    TreeShape(3, 4, 8),
    TreeShape(5, 4, 16),
]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 6, 8, 16, 32])
    parser.add_argument("--kv-len", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args(argv)

    device, dtype = torch.device("cpu"), getattr(torch, args.dtype)
    ops = load_ops("auto", device, num_threads=args.threads)
    head_path, model_path = Path(DEFAULT_HEAD_PATH), Path(DEFAULT_MODEL_PATH)
    target = TargetModel.load(model_path, head_path=head_path, dtype=dtype, ops=ops, device=device, tp=TpGroup())
    head = HeadModel.load(head_path, model_path, dtype=dtype, ops=ops, device=device)
    num_pages = pages_for(args.kv_len + _SPARE_TOKENS, _PAGE_SIZE)
    table = PageTable(PageAllocator(num_pages, _PAGE_SIZE))
    table.reserve(args.kv_len + _SPARE_TOKENS)

    print(f"{args.dtype}, {args.threads} threads, {ops.name} kernels, {args.kv_len} tokens of KV")
    print("| | ms: min | median |\n|---|---|---|")
    cache = target.make_cache(num_pages, _PAGE_SIZE)

    def step(rows: int = 1) -> None:
        builder = StepBuilder(_PAGE_SIZE)
        builder.add_tree(table, DraftTree.chain(list(range(100, 100 + rows))), args.kv_len)
        target.step(builder.build(), cache)

    for rows in args.rows:
        _report(f"target, {rows} rows", functools.partial(step, rows), args.repeats)

    drafter = Drafter(head, head.make_cache(num_pages, _PAGE_SIZE), max_rows=512)
    features = torch.randn(2, target.feature_size, generator=torch.Generator().manual_seed(0)).to(dtype)
    for shape in _SHAPES:
        numbers = (shape.num_steps, shape.eagle_topk, shape.num_draft_tokens)
        propose = ProposeParams(*numbers, seed=0, temperature=0.0)
        items = [ExtendItem(table, args.kv_len, np.array([100, 101], np.int32), features, propose)]
        _report(f"draft, {numbers}", functools.partial(drafter.extend, items), args.repeats, before=step)


def _report(name: str, run: Callable[[], object], repeats: int, *, before: Callable[[], object] | None = None) -> None:
    run()
    seconds = []
    for _ in range(repeats):
        if before is not None:
            before()
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    print(f"| {name} | {min(seconds) * 1e3:.1f} | {sorted(seconds)[len(seconds) // 2] * 1e3:.1f} |", flush=True)


if __name__ == "__main__":
    main()
