"""Where no CUDA device exists, Triton's kernels are interpreted on the CPU, and tests marked gpu are skipped."""

from __future__ import annotations

import os

import pytest
import torch

HAS_CUDA = torch.cuda.is_available()
if not HAS_CUDA:
    os.environ["TRITON_INTERPRET"] = "1"  # read by triton when it is first imported


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not HAS_CUDA:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))
