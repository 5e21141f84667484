"""Ranks: the processes that train one head together, each on a GPU of its own; one alone needs nothing."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException, spawn

from paceline.errors import PacelineError


class Ranks:
    """Every rank makes the same calls in the same order."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def average(self, tensors: Iterable[Tensor]) -> None:
        """MUTATES them: each becomes its mean over the ranks."""
        if self.size == 1:
            return
        parts = list(tensors)
        flat = torch.cat([part.flatten() for part in parts])
        dist.all_reduce(flat)
        flat /= self.size
        for part, mean in zip(parts, flat.split([part.numel() for part in parts]), strict=True):
            part.copy_(mean.view_as(part))

    def add_up(self, x: Tensor) -> Tensor:
        """The sum over the ranks. MAY MUTATE x."""
        if self.size > 1:
            dist.all_reduce(x)
        return x

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether it is set on any rank: for decisions that all must take alike."""
        return flag if self.size == 1 else bool(self.add_up(torch.tensor(float(flag), device=device)).item())


def run_ranks(work: Callable[[Ranks], None], size: int, *, backend: str) -> None:
    """Calls work on every rank: here for one, else in processes of their own (work must pickle).

    backend: of torch.distributed. What a rank raises ends the others; a PacelineError is raised here, too.
    """
    if size == 1:
        work(Ranks())
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            spawn(_run_rank, (size, backend, folder, work), nprocs=size)
        except (ProcessExitedException, ProcessRaisedException):
            for file in sorted(folder.glob("error-*")):
                raise pickle.loads(file.read_bytes()) from None
            raise


def _run_rank(rank: int, size: int, backend: str, folder: Path, work: Callable[[Ranks], None]) -> None:
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    try:
        work(Ranks(rank, size))
    except PacelineError as error:
        (folder / f"error-{rank}").write_bytes(pickle.dumps(error))
        raise
    finally:
        dist.destroy_process_group()
