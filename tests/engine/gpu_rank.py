"""One of several GPU ranks that check sums and gathers on themselves: python gpu_rank.py RANK SIZE INIT_METHOD."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from engine.all_reduce import MOST_BYTES
from engine.tp import TpGroup, init_tp_group, shard

HIDDEN = 4096
# Of the last two, one kernel's most and more: NCCL's.
ROWS = (1, 3, 64, MOST_BYTES[2] // (2 * HIDDEN), MOST_BYTES[2] // (2 * HIDDEN) + 1)
VOCAB = 1001  # shards of different widths


def random(rank: int, *shape: int, dtype: torch.dtype) -> Tensor:
    """What that rank holds; every rank can make it."""
    generator = torch.Generator().manual_seed(100 * rank + shape[0])
    return torch.randn(*shape, generator=generator).to(dtype)


def captured(run: Callable[[Tensor], Tensor | None], x: Tensor) -> Tensor | None:
    """run(x) by a graph that was captured while x held something else."""
    static = torch.zeros_like(x)
    run(static.clone())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        found = run(static.clone())
    for _ in range(2):
        static.copy_(x)
        graph.replay()
    torch.cuda.synchronize()
    return None if found is None else found.clone()


def check_sums(tp: TpGroup, device: torch.device) -> None:
    for dtype in (torch.bfloat16, torch.float32, torch.float16):
        for rows in ROWS:
            parts = [random(rank, rows, HIDDEN, dtype=dtype) for rank in range(tp.size)]
            wanted = sum(part.double() for part in parts)
            for how in (lambda x: tp.all_reduce(x.clone()), lambda x: captured(tp.all_reduce, x)):
                found = how(parts[tp.rank].to(device))
                tolerance = 1e-6 if dtype is torch.float32 else 2e-2 * tp.size
                torch.testing.assert_close(found.cpu().double(), wanted, atol=tolerance, rtol=tolerance)
                bits = found.view(torch.int32).cpu()
                others = [torch.empty_like(bits) for _ in range(tp.size)]
                dist.all_gather(others, bits)
                assert all(torch.equal(other, bits) for other in others), (dtype, rows)


def check_gathers(tp: TpGroup, device: torch.device) -> None:
    start, stop = shard(VOCAB, tp.rank, tp.size)
    for rows in (1, 33):
        whole = random(7, rows, VOCAB, dtype=torch.float32)
        mine = whole[:, start:stop].contiguous().to(device)
        for how in (
            lambda x: tp.gather_last_dim(x, VOCAB),
            lambda x: captured(lambda y: tp.gather_last_dim(y, VOCAB), x),
        ):
            found = how(mine)
            assert (found is None) == (tp.rank > 0)
            if found is not None:
                assert torch.equal(found.cpu(), whole)


def main() -> None:
    rank, size = map(int, sys.argv[1:3])
    device = torch.device("cuda", rank)
    tp = init_tp_group(rank, size, init_method=sys.argv[3], device=device)
    check_sums(tp, device)
    check_gathers(tp, device)
    dist.all_reduce(torch.zeros(1))
    print("checked", flush=True)
    os._exit(0)  # as a rank of a target ends


if __name__ == "__main__":
    main()
