"""Where tests run Triton's kernels: interpreted on a machine without a GPU, compiled on one with it."""

from __future__ import annotations

import pytest
import torch

INTERPRETED = pytest.mark.skipif(torch.cuda.is_available(), reason="triton compiles for the GPU here")
DEVICES = [pytest.param("cpu", marks=INTERPRETED), pytest.param("cuda", marks=pytest.mark.gpu)]
# Interpreted, Triton truncates where it would round to bf16; to fp16 it rounds.
HALF = torch.bfloat16 if torch.cuda.is_available() else torch.float16
