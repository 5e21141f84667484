"""Times the ops of a step on a GPU, one by one, and compares them with what the memory's bandwidth allows.

    python -m bench.gpu_ops --json ops.json
    python -m bench.gpu_ops --shapes 8b --rows 1 8 16 --ops linear logits --kernel-backend reference

Each op runs many times in one CUDA graph that is replayed, as a served step does. Weights are larger than the L2 cache
(several copies take turns); activations are in it, as they are right after the op before. The share is of the time
that the bytes alone would take.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import torch

from bench.gpu_op_cases import SHAPES, OpCases
from bench.gpu_timer import copy_bandwidth, graph_us
from kernels.backends import load_ops

_H200_TB_S = 4.3  # what weights stream at on one H200, see docs/performance.md


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", choices=SHAPES, nargs="+", default=list(SHAPES))
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--ops", nargs="+", default=[""], help="ops whose name begins so; unset: all")
    parser.add_argument("--kernel-backend", default="auto")
    parser.add_argument("--bandwidth-tb-s", type=float, default=_H200_TB_S, help="the limit; 0 measures a copy")
    parser.add_argument("--json", type=Path, help="file for the same figures")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        parser.exit(1, "bench.gpu_ops: no CUDA device here\n")
    torch.manual_seed(0)
    device = torch.device("cuda")
    ops = load_ops(args.kernel_backend, device)
    limit = args.bandwidth_tb_s * 1e12 or copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {ops.name}, limit {limit / 1e12:.2f} TB/s")
    print("| model | op | shape | rows | us | limit: us | share |\n|---|---|---|---|---|---|---|")
    lines = []
    for shape, rows in itertools.product(args.shapes, args.rows):
        for op, case in OpCases(SHAPES[shape], rows, ops, device=device).take(args.ops):
            us, limit_us = graph_us(case.call, uses=case.uses), case.num_bytes / limit * 1e6
            lines.append({"model": shape, "op": op, "shape": case.shape, "rows": rows, "us": us, "limit_us": limit_us})
            row = f"| {shape} | {op} | {case.shape} | {rows} | {us:.2f} | {limit_us:.2f} | {limit_us / us:.0%} |"
            print(row, flush=True)
    if args.json:
        document = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "ops": lines}
        args.json.write_text(json.dumps(document | {"backend": ops.name, "limit_tb_s": limit / 1e12}, indent=2) + "\n")


if __name__ == "__main__":
    main()
