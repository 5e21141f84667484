"""Times products of few rows on a GPU: cuBLAS, the Triton kernel as planned, and the best of all its tiles and splits.

    python -m bench.gpu_linear --rows 1 4 16 64 --sweep --json linear.json

Weights of bf16 take turns, so that none is in the L2 cache; GB/s counts the weight's bytes alone. ``--sweep`` shows
what the rule of ``kernels.triton_ops.linear.plan_skinny`` misses.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import linear
from triton.runtime.errors import OutOfResources

from bench.gpu_op_cases import COLD_BYTES, SHAPES
from bench.gpu_timer import graph_us
from kernels.triton_ops.linear import SkinnyLinear, SkinnyPlan, SkinnyTile, plan_skinny

_TILES = [
    SkinnyTile(32, 256, 4),
    SkinnyTile(32, 512, 3),
    SkinnyTile(64, 64, 8),
    SkinnyTile(64, 128, 4),
    SkinnyTile(64, 128, 6),
    SkinnyTile(64, 256, 3),
    SkinnyTile(64, 256, 4),
    SkinnyTile(128, 64, 4),
    SkinnyTile(128, 64, 6, num_warps=8),
    SkinnyTile(128, 128, 3, num_warps=8),
    SkinnyTile(128, 128, 4, num_warps=8),
]
_SPLITS = (1, 2, 3, 4, 6, 8, 12)
_MAX_PROGRAMS = 8  # a multiprocessor, where the width is split


@dataclass(frozen=True, slots=True)
class Line:
    """One product at one number of rows. swept: microseconds and plan of every other, the fastest first."""

    model: str
    weight: str
    num_out: int
    width: int
    rows: int
    cublas_us: float
    us: float
    plan: str
    swept: list[tuple[float, str]]

    def __str__(self) -> str:
        gb_s = 2 * self.num_out * self.width / self.us * 1e-3
        best_us, best = self.swept[0] if self.swept else (self.us, "")
        shape = f"{self.model} {self.weight} {self.num_out} x {self.width}"
        times = f"{self.cublas_us:.2f} | {self.us:.2f} | {gb_s:.0f} | {self.plan} | {best_us:.2f} | {best}"
        return f"| {shape} | {self.rows} | {times} |"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", choices=SHAPES, nargs="+", default=list(SHAPES))
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 32, 64])
    parser.add_argument("--sweep", action="store_true", help="time every tile and split, too")
    parser.add_argument("--json", type=Path, help="file for all figures")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        parser.exit(1, "bench.gpu_linear: no CUDA device here\n")
    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}")
    print("| weight | rows | cuBLAS: us | Triton: us | GB/s | plan | best: us | its plan |\n" + "|---" * 8 + "|")
    lines = []
    for model in args.shapes:
        for line in _measure(model, args.rows, sweep=args.sweep):
            print(line, flush=True)
            lines.append(asdict(line))
    if args.json:
        args.json.write_text(json.dumps({"device": name, "torch": torch.__version__, "lines": lines}, indent=1) + "\n")


def _measure(model: str, row_counts: Sequence[int], *, sweep: bool) -> Iterator[Line]:
    num_sms = torch.cuda.get_device_properties("cuda").multi_processor_count
    skinny = SkinnyLinear(torch.device("cuda"))
    for name, (num_out, width) in SHAPES[model].weights.items():
        weights = _cold_weights(num_out, width)
        for rows in row_counts:
            x = torch.randn(rows, width, dtype=torch.bfloat16, device="cuda")
            plan = plan_skinny(rows, num_out, width, num_sms=num_sms)
            swept = [
                (us, _label(other))
                for other in (_plans(num_out, width, num_sms) if sweep else ())
                if (us := _plan_us(skinny, other, x, weights)) is not None
            ]
            us = _plan_us(skinny, plan, x, weights)
            assert us is not None, f"the plan {plan} does not fit the device"
            cublas_us = _time(linear, x, weights)
            yield Line(model, name, num_out, width, rows, cublas_us, us, _label(plan), sorted(swept))


def _cold_weights(num_out: int, width: int) -> list[Tensor]:
    copies = max(2, -(-COLD_BYTES // (2 * num_out * width)))
    return [torch.randn(num_out, width, dtype=torch.bfloat16, device="cuda") for _ in range(copies)]


def _time(product: Callable[[Tensor, Tensor], Tensor], x: Tensor, weights: list[Tensor]) -> float:
    return graph_us(lambda i: product(x, weights[i % len(weights)]), uses=max(20, len(weights)))


def _plan_us(skinny: SkinnyLinear, plan: SkinnyPlan, x: Tensor, weights: list[Tensor]) -> float | None:
    """None where the tile needs more shared memory than there is."""
    try:
        return _time(lambda x, weight: skinny.linear(x, weight, plan=plan), x, weights)
    except OutOfResources:
        return None


def _plans(num_out: int, width: int, num_sms: int) -> Iterator[SkinnyPlan]:
    """Every tile with every split that differs and does not flood the multiprocessors."""
    for tile in _TILES:
        num_tiles = -(-num_out // tile.block_out)
        widths = {-(-width // (splits * tile.block_k)) * tile.block_k for splits in _SPLITS}
        for split_width in sorted(widths, reverse=True):
            num_splits = -(-width // split_width)
            if num_splits == 1 or num_tiles * num_splits <= _MAX_PROGRAMS * num_sms:
                yield SkinnyPlan(tile, split_width)


def _label(plan: SkinnyPlan) -> str:
    tile = plan.tile
    return f"{tile.block_out}x{tile.block_k} s{tile.num_stages} w{tile.num_warps} / {plan.split_width}"


if __name__ == "__main__":
    main()
