"""The memory of packed weights: tensors that share chunks must not share bytes, nor outlive them."""

from __future__ import annotations

import errno
import mmap

import pytest
import torch

from kernels.cpu_ops.huge_pages import HugePages

SHAPES = [(3, 5), (1, 1), (700, 1000), (4096, 5000), (7, 33)]


def test_tensors_begin_on_cache_lines_and_share_no_byte() -> None:
    pages = HugePages()
    tensors = [pages.empty(shape, dtype) for shape in SHAPES for dtype in (torch.bfloat16, torch.float32)]
    for i, tensor in enumerate(tensors):
        tensor.fill_(i)
    for i, tensor in enumerate(tensors):
        assert tensor.data_ptr() % 64 == 0 and tensor.is_contiguous()
        assert torch.equal(tensor, torch.full_like(tensor, i)), tensor.shape


def test_tensors_outlive_what_made_them() -> None:
    pages = HugePages()
    tensor = pages.empty((1000, 1000), torch.float32).fill_(3)
    del pages
    others = [HugePages().empty((1000, 1000), torch.float32).fill_(4) for _ in range(4)]
    assert int(tensor.sum()) == 3_000_000 and len(others) == 4


class KernelWithout(mmap.mmap):
    """As of a kernel that was built without huge pages."""

    def madvise(self, *given: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")


def test_a_kernel_without_huge_pages_gives_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "mmap", KernelWithout)
    assert HugePages().empty((3, 5), torch.float32).fill_(2).sum() == 30
