"""Times the products of a model's layer on a GPU by torch's algorithm and by the one that tuning chooses.

    python -m bench.gpu_products --shapes 8b --rows 48 64 96 128 160 192 256

Weights of bf16 take turns, so that none is in the L2 cache. The choice is made as a service makes it, on one of the
weights, and timed here anew, on all of them. A layer is its four products; choosing is what it took at start.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import linear

from bench.gpu_op_cases import COLD_BYTES, SHAPES, ModelShape
from bench.gpu_timer import graph_us
from kernels.triton_ops.ops import TritonOps

_LAYER = ("qkv", "output", "gate_up", "down")
_ROWS = [48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512]


@dataclass(frozen=True, slots=True)
class Line:
    """One product at one number of rows."""

    weight: str
    rows: int
    torch_us: float
    tuned_us: float
    choosing_ms: float

    def __str__(self) -> str:
        times = f"{self.torch_us:.2f} | {self.tuned_us:.2f} | {self.torch_us / self.tuned_us:.3f}"
        return f"| {self.weight} | {self.rows} | {times} | {self.choosing_ms:.0f} |"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", choices=SHAPES, nargs="+", default=["8b"])
    parser.add_argument("--rows", type=int, nargs="+", default=_ROWS)
    parser.add_argument("--json", type=Path, help="file for the same figures")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        parser.exit(1, "bench.gpu_products: no CUDA device here\n")
    torch.manual_seed(0)
    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}\n| weight | rows | torch: us | tuned: us | gain | choosing: ms |")
    print("|---" * 6 + "|")
    lines: dict[str, list[Line]] = {}
    for model in args.shapes:
        lines[model] = list(_measure(model, SHAPES[model], args.rows))
        for rows in args.rows:
            parts = [line for line in lines[model] if line.rows == rows and line.weight in _LAYER]
            sums = [sum(getattr(part, name) for part in parts) for name in ("torch_us", "tuned_us", "choosing_ms")]
            print(Line(f"{model}: a layer", rows, *sums), flush=True)
    if args.json:
        document = {model: [asdict(line) for line in some] for model, some in lines.items()}
        args.json.write_text(json.dumps({"device": name, "torch": torch.__version__} | document, indent=1) + "\n")


@torch.inference_mode()
def _measure(model: str, shape: ModelShape, row_counts: Sequence[int]) -> Iterator[Line]:
    ops = TritonOps("cuda")
    for name in (*_LAYER, "fc"):
        num_out, width = shape.weights[name]
        copies = max(2, -(-COLD_BYTES // (2 * num_out * width)))
        weights = [torch.randn(num_out, width, dtype=torch.bfloat16, device="cuda") for _ in range(copies)]
        for rows in row_counts:
            x = torch.randn(rows, width, dtype=torch.bfloat16, device="cuda")
            linear(x, weights[0])
            torch.cuda.synchronize()
            started_s = time.perf_counter()
            with ops.tuning():
                ops.linear(x, weights[0])
            choosing_ms = (time.perf_counter() - started_s) * 1e3
            line = Line(name, rows, _us(linear, x, weights), _us(ops.linear, x, weights), choosing_ms)
            print(line, flush=True)
            yield line


def _us(product: Callable[[Tensor, Tensor], Tensor], x: Tensor, weights: list[Tensor]) -> float:
    return graph_us(lambda i: product(x, weights[i % len(weights)]), uses=max(20, len(weights)))


if __name__ == "__main__":
    main()
