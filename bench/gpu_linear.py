"""Times products of few rows on a GPU: cuBLAS, the Triton kernel as planned, and the best of all its tiles and splits.

    python -m bench.gpu_linear --rows 1 4 16 64 --sweep --json linear.json
    python -m bench.gpu_linear --bits 8 --shapes 8b --sweep

Weights take turns, so that none is in the L2 cache; GB/s counts the weight's bytes alone. cuBLAS multiplies bf16; the
Triton kernel does, too, or with ``--bits 8`` the head's matrices as a draft rounds them. ``--sweep`` shows what the
rule of ``kernels.triton_ops.linear.plan_skinny`` misses.
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
from kernels.triton_ops.linear import MAX_ROWS, SkinnyLinear, SkinnyPlan, SkinnyTile, plan_skinny
from kernels.triton_ops.rounded_weight import RoundedWeight

Weight = Tensor | RoundedWeight

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
# Few: each takes a second to compile, for each power of two of rows.
_ROUNDED_TILES = {
    16: [
        SkinnyTile(32, 128, 6, num_warps=2),
        SkinnyTile(64, 64, 6),
        SkinnyTile(64, 128, 3),
        SkinnyTile(64, 128, 5),
        SkinnyTile(128, 64, 4),
        SkinnyTile(128, 128, 4, num_warps=8),
    ],
    MAX_ROWS: [
        SkinnyTile(64, 64, 4),
        SkinnyTile(128, 64, 3, num_warps=8),
        SkinnyTile(128, 64, 4, num_warps=8),
        SkinnyTile(128, 128, 3, num_warps=8),
        SkinnyTile(256, 64, 3, num_warps=8),
    ],
}
_SPLITS = (1, 2, 3, 4, 6, 8, 12)
_MAX_PROGRAMS = 8  # a multiprocessor, where the width is split


@dataclass(frozen=True, slots=True)
class Line:
    """One product at one number of rows. swept: microseconds and plan of every other, the fastest first."""

    model: str
    weight: str
    num_out: int
    width: int
    bits: int
    rows: int
    cublas_us: float
    us: float
    plan: str
    swept: list[tuple[float, str]]

    def __str__(self) -> str:
        gb_s = self.bits / 8 * self.num_out * self.width / self.us * 1e-3
        best_us, best = self.swept[0] if self.swept else (self.us, "")
        shape = f"{self.model} {self.weight} {self.num_out} x {self.width}"
        times = f"{self.cublas_us:.2f} | {self.us:.2f} | {gb_s:.0f} | {self.plan} | {best_us:.2f} | {best}"
        return f"| {shape} | {self.bits} | {self.rows} | {times} |"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", choices=SHAPES, nargs="+", default=list(SHAPES))
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8, 16, 32, 64])
    parser.add_argument("--bits", type=int, choices=[8, 16], nargs="+", default=[16], help="of Triton's weights")
    parser.add_argument("--overlap", action="store_true", help="Triton's kernels start while the one before ends")
    parser.add_argument("--sweep", action="store_true", help="time every tile and split, too")
    parser.add_argument("--json", type=Path, help="file for all figures")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        parser.exit(1, "bench.gpu_linear: no CUDA device here\n")
    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}{', overlap' if args.overlap else ''}")
    columns = "weight | bits | rows | cuBLAS: us | Triton: us | GB/s | plan | best: us | its plan"
    print(f"| {columns} |\n" + "|---" * 9 + "|")
    bench = Bench(overlap=args.overlap, sweep=args.sweep)
    lines = []
    for model in args.shapes:
        for bits in args.bits:
            for line in bench.lines(model, bits, args.rows):
                print(line, flush=True)
                lines.append(asdict(line))
    if args.json:
        args.json.write_text(json.dumps({"device": name, "torch": torch.__version__, "lines": lines}, indent=1) + "\n")


class Bench:
    """Times the products of a model with Triton's weights in so many bits."""

    def __init__(self, *, overlap: bool, sweep: bool) -> None:
        self._skinny = SkinnyLinear(torch.device("cuda"), overlap=overlap)
        self._num_sms = torch.cuda.get_device_properties("cuda").multi_processor_count
        self._sweep = sweep

    def lines(self, model: str, bits: int, row_counts: Sequence[int]) -> Iterator[Line]:
        shape = SHAPES[model]
        for name, (num_out, width) in (shape.weights if bits == 16 else shape.head_weights).items():
            weights = _cold_weights(num_out, width)
            forms: list[Weight] = [RoundedWeight.of(weight) for weight in weights] if bits == 8 else [*weights]
            for rows in row_counts:
                x = torch.randn(rows, width, dtype=torch.bfloat16, device="cuda")
                plan, *others = self._plans_of(forms[0], rows)
                swept = [(us, _label(other)) for other in others if (us := self._us(other, x, forms)) is not None]
                us = self._us(plan, x, forms)
                assert us is not None, f"the plan {plan} does not fit the device"
                cublas_us = _cublas_us(x, weights)
                yield Line(model, name, num_out, width, bits, rows, cublas_us, us, _label(plan), sorted(swept))

    def _plans_of(self, weight: Weight, rows: int) -> Iterator[SkinnyPlan]:
        """The rule's, then those of the sweep."""
        is_rounded = isinstance(weight, RoundedWeight)
        num_out, width = weight.pairs.shape if isinstance(weight, RoundedWeight) else weight.shape
        yield plan_skinny(rows, num_out, width, num_sms=self._num_sms, is_rounded=is_rounded)
        if self._sweep:
            tiles = next(tiles for most, tiles in _ROUNDED_TILES.items() if rows <= most) if is_rounded else _TILES
            yield from _plans(tiles, num_out, width, self._num_sms)

    def _us(self, plan: SkinnyPlan, x: Tensor, weights: list[Weight]) -> float | None:
        """None where the tile needs more shared memory than there is."""
        try:
            return _time(lambda i: self._skinny.linear(x, weights[i], plan=plan), len(weights))
        except OutOfResources:
            return None


def _cold_weights(num_out: int, width: int) -> list[Tensor]:
    copies = max(2, -(-COLD_BYTES // (num_out * width)))
    return [torch.randn(num_out, width, dtype=torch.bfloat16, device="cuda") for _ in range(copies)]


def _cublas_us(x: Tensor, weights: list[Tensor]) -> float:
    return _time(lambda i: linear(x, weights[i]), len(weights))


def _time(product: Callable[[int], Tensor], copies: int) -> float:
    """product(i) takes the i-th copy of the weight."""
    return graph_us(lambda i: product(i % copies), uses=max(20, copies))


def _plans(tiles: Sequence[SkinnyTile], num_out: int, width: int, num_sms: int) -> Iterator[SkinnyPlan]:
    """Every tile with every split that differs and does not flood the multiprocessors. width: columns."""
    for tile in tiles:
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
