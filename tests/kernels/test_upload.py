"""An upload brings what was staged, in the order of what was launched before and after it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.cuda_driver import CudaDriver
from kernels.upload import Upload

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_only_the_part_that_is_sent_changes(dtype: torch.dtype, device: str) -> None:
    upload = Upload(100, dtype, torch.device(device))
    upload.stage()[:] = 7
    upload.send(60, start=20)
    assert np.flatnonzero(upload.tensor.cpu().numpy() == 7).tolist() == list(range(20, 60))
    upload.stage()[:] = 9
    upload.send(21)
    assert upload.tensor.tolist() == [9] * 21 + [7] * 39 + [0] * 40


@pytest.mark.parametrize("device", DEVICES)
def test_what_was_launched_before_a_send_reads_the_old_content(device: str) -> None:
    upload = Upload(1 << 20, torch.int64, torch.device(device))
    sums = []
    for value in range(1, 8):
        upload.stage()[:] = value
        upload.send(1 << 20)
        sums.append(upload.tensor.sum())
    assert [int(total) >> 20 for total in sums] == list(range(1, 8))


@pytest.mark.gpu
def test_a_call_that_fails_says_which_and_why() -> None:
    driver = CudaDriver(torch.device("cuda"))
    with pytest.raises(RuntimeError, match="cuMemcpyHtoDAsync on cuda:0: CUDA_ERROR_INVALID_VALUE"):
        driver.upload(0, 0, 64)
