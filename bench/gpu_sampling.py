"""Times sampling, the walk and top-k on a GPU, by nodes (or rows) and vocabulary.

    python -m bench.gpu_sampling --nodes 1 16 64 256 512 --vocab 49152 128256

A request has one node. Logits fall like -1.5 log(rank), which spreads a nucleus over tens to thousands of tokens.
The device's time is that of kernels and copies which were all queued before; the host's is that of ``start_walk``; the
latency is from its call to the result, on an idle device. The limit reads the logits once, at 4.3 TB/s. Medians.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from kernels.backends import load_ops
from kernels.ops import Ops, PendingWalk, SamplingBatch, TreeBatch, WalkLimits

_BYTES_PER_US = 4.3e6
_SLEEP_CYCLES = 2_000_000  # about 1 ms: longer than the host takes to queue two calls
_MODES = {
    "greedy": (0.0, 0, 1.0),
    "temperature": (0.8, 0, 1.0),
    "top-p": (0.8, 0, 0.9),
    "top-k, top-p": (0.8, 50, 0.9),
}
_SELECTIONS = (  # rows, scores, k
    (10, 16384, 10),
    (80, 16384, 10),
    (640, 16384, 10),
    (2560, 16384, 10),
    (2560, 32000, 16),
    (80, 32000, 256),
)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 16, 64, 256, 512])
    parser.add_argument("--vocab", type=int, nargs="+", default=[49152, 128256])
    parser.add_argument("--kernel-backend", default="auto")
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        parser.exit(1, "there is no CUDA device\n")
    ops = load_ops(args.kernel_backend, "cuda")
    print(f"{torch.cuda.get_device_name()}, {ops.name}, torch {torch.__version__}\n")
    _print_walks(ops, args)
    _print_selections(ops, args.repeats)


def _print_walks(ops: Ops, args: argparse.Namespace) -> None:
    print("| V | nodes | sampling | device: us | limit: us | host: us | latency: us |\n|---|---|---|---|---|---|---|")
    for vocab_size in args.vocab:
        ops.prepare_walk(WalkLimits(max(args.nodes), max(args.nodes), vocab_size))
        for num_nodes in args.nodes:
            logits = _logits(num_nodes, vocab_size)
            for name, mode in _MODES.items():
                walk = _walk(ops, logits, mode)
                limit_us = num_nodes * vocab_size * 4 / _BYTES_PER_US
                times_us = [_device_us(walk, args.repeats), limit_us, *_host_us(walk, args.repeats)]
                print(f"| {vocab_size} | {num_nodes} | {name} | {_cells(times_us)} |", flush=True)


def _print_selections(ops: Ops, repeats: int) -> None:
    print("\n| rows | scores | k | top_k: us | top_k_log_probs: us | limit: us |\n|---|---|---|---|---|---|")
    for rows, columns, k in _SELECTIONS:
        scores = torch.randn((rows, columns), device="cuda")
        ops_of_k = (ops.top_k, ops.top_k_log_probs)
        times_us = [_device_us(functools.partial(op, scores, k), repeats) for op in ops_of_k]
        print(f"| {rows} | {columns} | {k} | {_cells([*times_us, scores.nbytes / _BYTES_PER_US])} |", flush=True)


def _cells(times_us: Sequence[float]) -> str:
    return " | ".join(f"{time_us:.1f}" for time_us in times_us)


def _logits(num_nodes: int, vocab_size: int) -> Tensor:
    ranks = torch.rand((num_nodes, vocab_size), device="cuda").argsort(1) + 1
    return -1.5 * ranks.float().log() + 0.3 * torch.randn((num_nodes, vocab_size), device="cuda")


def _walk(ops: Ops, logits: Tensor, mode: tuple[float, int, float]) -> Callable[[], PendingWalk]:
    num_nodes = len(logits)
    zeros, nothing = np.zeros(num_nodes, np.int32), np.full(num_nodes, -1, np.int32)
    trees = TreeBatch(np.arange(num_nodes + 1, dtype=np.int32), zeros, zeros + 100, nothing, nothing)
    temperature, top_k, top_p = mode
    sampling = SamplingBatch(
        seed=np.arange(num_nodes, dtype=np.uint64),
        temperature=np.full(num_nodes, temperature, np.float32),
        top_k=zeros + top_k,
        top_p=np.full(num_nodes, top_p, np.float32),
        min_p=np.zeros(num_nodes, np.float32),
    )
    return lambda: ops.start_walk(logits, trees, sampling)


def _device_us(call: Callable[[], object], repeats: int) -> float:
    """Two calls queued behind a pause, so that the host's time does not show."""
    times = []
    for _ in range(repeats + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        torch.cuda._sleep(_SLEEP_CYCLES)
        start.record()
        call()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / 2)
    return statistics.median(times[3:])


def _host_us(walk: Callable[[], PendingWalk], repeats: int) -> tuple[float, float]:
    """(start_walk, start_walk and its result) on an idle device."""
    starts, totals = [], []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        pending = walk()
        started = time.perf_counter()
        pending.result()
        starts.append(started - begin)
        totals.append(time.perf_counter() - begin)
    return statistics.median(starts) * 1e6, statistics.median(totals) * 1e6


if __name__ == "__main__":
    main()
