"""From the requests' SamplingParams to the arrays that a step samples with. No tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernels.ops import SamplingBatch
from paceline.types import SamplingParams


def sampling_batch(params: Sequence[SamplingParams]) -> SamplingBatch:
    """One entry a request, in the order of the step's trees."""
    return SamplingBatch(
        seed=np.array([p.seed for p in params], np.uint64),
        temperature=np.array([p.temperature for p in params], np.float32),
        top_k=np.array([min(p.top_k, _MAX_TOP_K) for p in params], np.int32),
        top_p=np.array([max(p.top_p, _LEAST_TOP_P) for p in params], np.float32),
        min_p=np.array([p.min_p for p in params], np.float32),
    )


_MAX_TOP_K = 2**31 - 1
_LEAST_TOP_P = 2.0**-126  # what is smaller would become 0 in float32, and leave no token
