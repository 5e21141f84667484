"""The CPU backend where its C extension was not built."""

from __future__ import annotations

import logging

import pytest
import torch

from kernels.cpu_ops import native
from kernels.cpu_ops.ops import CpuOps
from kernels.reference.ops import ReferenceOps


def test_without_the_extension_torch_computes_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native, "EXTENSION", None)
    monkeypatch.setattr(native, "MISSING", "no module; install a C compiler and reinstall")
    with caplog.at_level(logging.INFO, logger="kernels.cpu_ops"):
        ops = CpuOps()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "torch computes instead (slower): no module; install a C compiler and reinstall" in caplog.text
    x, weight = torch.randn(3, 8), torch.randn(5, 8)
    assert torch.equal(ops.linear(x, weight), ReferenceOps().linear(x, weight))
    assert torch.equal(ops.rms_norm(x, weight[0], 1e-5), ReferenceOps().rms_norm(x, weight[0], 1e-5))
