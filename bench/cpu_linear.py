"""Times all matrix products of the default model on the CPU: torch against the C kernels, by rows in a step.

    python -m bench.cpu_linear --dtype bf16 --rows 1 2 4 6 8 16 32 64

The weights are random and exceed the caches, so that every step reads them from memory, as a served model does. Each
figure is the best of ``--repeats`` steps; the two columns alternate, for other work on the machine to hit both alike.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kernels.cpu_ops.native import load_native
from kernels.cpu_ops.ops import CpuOps

_LAYERS = 30
_LAYER_SHAPES = [(960, 576), (576, 576), (3072, 576), (576, 1536)]
_HEAD_SHAPE = (49152, 576)
_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}

Linear = Callable[[Tensor, Tensor], Tensor]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=_DTYPES, default="bf16")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 6, 8, 16, 32, 64])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args(argv)
    native = load_native(num_threads=args.threads)
    if native is None:
        parser.exit(1, "the C kernels are not built: install a C compiler, then reinstall the package\n")
    torch.set_num_threads(args.threads)
    dtype = _DTYPES[args.dtype]
    weights = [torch.randn(shape).to(dtype) for shape in _LAYER_SHAPES * _LAYERS + [_HEAD_SHAPE]]
    ops = CpuOps(native)
    packed = [ops.prepare_weight(weight) for weight in weights]
    gigabytes = sum(weight.nbytes for weight in weights) / 1e9
    print(f"{args.dtype}, {args.threads} threads, {native.isa}, {gigabytes:.3f} GB of weights a step")
    print("| rows | torch: ms | C: ms | ratio | C: GB/s | C: GFLOP/s |\n|---|---|---|---|---|---|")
    for rows in args.rows:
        inputs = {width: torch.randn(rows, width).to(dtype) for width in {shape[1] for shape in _LAYER_SHAPES}}
        torch_s, native_s = _best_steps(
            [(torch.nn.functional.linear, weights), (ops.linear, packed)], inputs, args.repeats
        )
        flops = 2 * rows * sum(weight.numel() for weight in weights)
        print(
            f"| {rows} | {torch_s * 1e3:.1f} | {native_s * 1e3:.1f} | {torch_s / native_s:.1f} "
            f"| {gigabytes / native_s:.1f} | {flops / native_s / 1e9:.0f} |",
            flush=True,
        )


def _best_steps(linears: list[tuple[Linear, list[Tensor]]], inputs: dict[int, Tensor], repeats: int) -> list[float]:
    """Seconds of each function's fastest pass over all of its weights, the functions taking turns."""
    best = [float("inf")] * len(linears)
    for _ in range(repeats):
        for i, (linear, weights) in enumerate(linears):
            start = time.perf_counter()
            for weight in weights:
                linear(inputs[weight.shape[1]], weight)
            best[i] = min(best[i], time.perf_counter() - start)
    return best


if __name__ == "__main__":
    main()
