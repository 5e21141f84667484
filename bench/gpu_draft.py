"""Times a round of the draft on a GPU: committed rows in, trees out.

    python -m bench.inflate --shape llama-8b --lazy /tmp/8b
    python -m bench.gpu_draft --pair /tmp/8b --sessions 1 8 64 --head-bits 8 16 --json draft.json

A round extends each session by ``--rows`` rows and grows its tree. "device": the device's part, its host far
ahead; "wall": of the whole call; "limit": 1.3 head steps of 0.28 ms for each of the tree's. Medians, in ms.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from engine.device_drafter import DeviceDrafter, DrafterLimits
from engine.draft_batch import ExtendItem, ProposeParams
from engine.graph_capture import CudaCapture
from engine.head_model import HeadModel
from engine.pages import PageAllocator, PageTable, pages_for
from kernels.backends import load_ops
from kernels.triton_ops.ops import TritonOps
from paceline.types import MAX_SCRATCH_NODES, TreeShape

_HEAD_STEP_MS = 0.28  # docs/performance.md: one head step of up to 10 rows at the 8B shape
_SLACK = 1.3
_PAGE_SIZE = 16
_WARM_UPS = 5
_HEAD_START_CYCLES = 10_000_000  # a few ms, in which the host launches a whole round


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the table."""

    shape: str
    head_bits: int
    sessions: int
    temperature: float
    graphs: bool
    device_ms: float
    wall_ms: float
    limit_ms: float


class Rounds:
    """Sessions of one length that ask for one tree after another."""

    def __init__(self, model: HeadModel, *, sessions: int, kv_len: int, rows: int) -> None:
        self._features = torch.randn(sessions * rows, model.config.hidden_size).to(model.dtype)
        capacity = kv_len + rows + MAX_SCRATCH_NODES
        num_pages = sessions * pages_for(capacity, _PAGE_SIZE)
        self._allocator = PageAllocator(num_pages, _PAGE_SIZE)
        self._tables = [PageTable(self._allocator) for _ in range(sessions)]
        for table in self._tables:
            table.reserve(capacity)
        self._kv_len, self._rows = kv_len, rows
        self.num_pages = num_pages

    def items(self, shape: TreeShape, sessions: int, temperature: float) -> list[ExtendItem]:
        numbers = (shape.num_steps, shape.eagle_topk, shape.num_draft_tokens)
        tokens = np.arange(100, 100 + self._rows, dtype=np.int32)
        return [
            ExtendItem(
                table=self._tables[i],
                base_len=self._kv_len,
                tokens=tokens,
                features=self._features[i * self._rows : (i + 1) * self._rows],
                propose=ProposeParams(*numbers, seed=i, temperature=temperature),
            )
            for i in range(sessions)
        ]


@dataclass(frozen=True, slots=True)
class Captured:
    """A drafter whose head has so many bits, and sessions of its own."""

    bits: int
    has_graphs: bool
    drafter: DeviceDrafter
    rounds: Rounds


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", type=Path, required=True, help="folder with target and head, as bench.inflate writes")
    parser.add_argument("--shapes", default="3,1,4;5,1,6;5,4,16")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 8, 32, 64, 256])
    parser.add_argument("--kv-len", type=int, default=500)
    parser.add_argument("--rows", type=int, default=2, help="committed rows of a session and round")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0])
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--kernel-backend", default="auto")
    parser.add_argument(
        "--head-bits", type=int, choices=[8, 16], nargs="+", default=[8], help="8: rounded in bf16, as served; 16: not"
    )
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--eager", action="store_true", help="also without graphs")
    parser.add_argument("--profile", action="store_true", help="also the kernels of the last round, by time")
    parser.add_argument("--json", type=Path, help="file for the same figures")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        parser.exit(1, "bench.gpu_draft: no CUDA device here\n")

    device = torch.device("cuda", torch.cuda.current_device())
    shapes = [TreeShape(*(int(number) for number in part.split(","))) for part in args.shapes.split(";")]
    most = max(args.sessions)
    limits = DrafterLimits(max_rows=max(512, most * args.rows), max_sessions=most)
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {args.kernel_backend}, {args.dtype}, "
        f"{args.kv_len} tokens of KV, {args.rows} rows a session"
    )
    drafters: list[Captured] = []
    for bits in args.head_bits:
        ops = load_ops(args.kernel_backend, device) if bits == 8 else TritonOps(device, rounded_rows=0)
        head, target = args.pair / "head", args.pair / "target"
        model = HeadModel.load(head, target, dtype=getattr(torch, args.dtype), ops=ops, device=device)
        rounds = Rounds(model, sessions=most, kv_len=args.kv_len, rows=args.rows)
        cache = model.make_cache(rounds.num_pages, _PAGE_SIZE)
        start = time.perf_counter()
        drafter = DeviceDrafter(model, cache, limits)
        drafter.capture(shapes, CudaCapture(device))
        print(f"{bits} bits: {model.weight_bytes / 2**20:.0f} MiB; captured in {time.perf_counter() - start:.1f} s")
        drafters.append(Captured(bits, True, drafter, rounds))
        if args.eager:
            drafters.append(Captured(bits, False, DeviceDrafter(model, cache, limits), rounds))
    print("| tree | sessions | T | bits | graphs | device ms | wall ms | limit ms |\n" + "|---" * 8 + "|")
    lines = []
    for shape, temperature, sessions in itertools.product(shapes, args.temperature, args.sessions):
        for captured in drafters:
            items = captured.rounds.items(shape, sessions, temperature)
            device_ms, wall_ms = _time(captured.drafter, items, args.repeats)
            numbers = f"({shape.num_steps}, {shape.eagle_topk}, {shape.num_draft_tokens})"
            limit_ms = shape.num_steps * _HEAD_STEP_MS * _SLACK
            figures = (sessions, temperature, captured.has_graphs, device_ms, wall_ms, limit_ms)
            lines.append(Line(numbers, captured.bits, *figures))
            how = f"{numbers} | {sessions} | {temperature} | {captured.bits} | {'yes' if captured.has_graphs else 'no'}"
            print(f"| {how} | {device_ms:.2f} | {wall_ms:.2f} | {limit_ms:.2f} |", flush=True)
    if args.profile:
        _profile(drafters[0].drafter, drafters[0].rounds.items(shape, sessions, temperature))
    if args.json:
        args.json.write_text(json.dumps([asdict(line) for line in lines], indent=2) + "\n")


def _time(drafter: DeviceDrafter, items: list[ExtendItem], repeats: int) -> tuple[float, float]:
    """Medians in ms: on the device when it need not wait for the host, and of the call."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    device_ms, wall_ms = [], []
    for i in range(_WARM_UPS + repeats):
        torch.cuda.synchronize()
        began = time.perf_counter()
        drafter.extend(items)
        ended = time.perf_counter()
        torch.cuda._sleep(_HEAD_START_CYCLES)
        start.record()
        drafter.extend(items)
        stop.record()
        torch.cuda.synchronize()
        if i >= _WARM_UPS:
            device_ms.append(start.elapsed_time(stop))
            wall_ms.append((ended - began) * 1e3)
    return statistics.median(device_ms), statistics.median(wall_ms)


def _profile(drafter: DeviceDrafter, items: list[ExtendItem]) -> None:
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profiler:
        drafter.extend(items)
        torch.cuda.synchronize()
    print(profiler.key_averages().table(sort_by="self_cuda_time_total", row_limit=40, max_name_column_width=70))


if __name__ == "__main__":
    main()
