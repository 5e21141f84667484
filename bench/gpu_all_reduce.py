"""Times the sum of a step's rows over GPUs, NCCL against one kernel, in a CUDA graph. Starts a process for each GPU.

    python -m bench.gpu_all_reduce --gpus 2

us a sum by rows and hidden size in bf16, the median over replays, on rank 0; and from which size on NCCL is faster,
which is what MOST_BYTES in engine/all_reduce.py should say.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from engine.all_reduce import one_shot_sum
from engine.tp import init_tp_group

_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_SUMS = 64  # in a graph, as in a model of 32 layers
_REPLAYS = 30


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--hidden", type=int, nargs="+", default=[4096, 5120])
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--init-method", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.rank is not None:
        _run_rank(args)
        return
    with tempfile.TemporaryDirectory() as folder:
        init_method = (Path(folder) / "ranks").as_uri()
        shapes = ["--gpus", str(args.gpus), "--hidden", *map(str, args.hidden)]
        command = [sys.executable, "-m", "bench.gpu_all_reduce", *shapes, "--init-method", init_method]
        ranks = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(args.gpus)]
        try:
            while any(rank.poll() is None for rank in ranks) and not any(rank.poll() for rank in ranks):
                time.sleep(0.1)
        finally:
            for rank in ranks:
                rank.kill()  # one that failed leaves the others in a sum that never ends
    sys.exit(max(abs(rank.wait()) for rank in ranks))


def _run_rank(args: argparse.Namespace) -> None:
    device = torch.device("cuda", args.rank)
    init_tp_group(args.rank, args.gpus, init_method=args.init_method, device=device)
    most_bytes = 2 * max(_ROWS) * max(args.hidden)
    one_shot = one_shot_sum(device, most_bytes=most_bytes)
    say = print if args.rank == 0 else _keep_quiet
    say(f"{args.gpus} x {torch.cuda.get_device_name(device)}, torch {torch.__version__}, bf16, us a sum")
    say("| hidden | rows | KiB | NCCL | one kernel |\n|---|---|---|---|---|")
    for hidden in args.hidden:
        for rows in _ROWS:
            x = torch.full((rows, hidden), 0.5, dtype=torch.bfloat16, device=device)
            figures = [_time_us(x, _nccl_sum)]
            if one_shot is not None:
                figures.append(_time_us(x, one_shot.sum))
            say(f"| {hidden} | {rows} | {x.nbytes >> 10} | {' | '.join(f'{figure:.1f}' for figure in figures)} |")
    sys.stdout.flush()
    os._exit(0)  # NCCL's farewell waits for the graphs


def _nccl_sum(x: Tensor) -> Tensor:
    dist.all_reduce(x)
    return x


def _keep_quiet(_: str) -> None:
    return


def _time_us(x: Tensor, add_up: Callable[[Tensor], Tensor]) -> float:
    add_up(x.clone())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(_SUMS):
            add_up(x)
    times_us = []
    for _ in range(_REPLAYS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        dist.all_reduce(torch.zeros(1, device=x.device))  # the ranks start together
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times_us.append(start.elapsed_time(end) * 1e3 / _SUMS)
    return statistics.median(times_us[_REPLAYS // 3 :])


if __name__ == "__main__":
    main()
