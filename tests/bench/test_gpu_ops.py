"""The GPU bench's cases, run once each at a tiny shape."""

from __future__ import annotations

import torch

from bench.gpu_op_cases import ModelShape, OpCases
from kernels.reference.ops import ReferenceOps

TINY = ModelShape(hidden=8, heads=4, kv_heads=2, head_dim=4, inner=12, layers=2, vocab=20, draft_vocab=10)


def test_every_case_runs_and_counts_its_bytes() -> None:
    cases = dict(OpCases(TINY, 16, ReferenceOps(), device=torch.device("cpu")).take(["add", "rope", "move", "silu"]))
    for case in cases.values():
        case.call(0)
    row = 16 * 8 * 2
    assert cases["add_rms_norm"].num_bytes == 4 * row and cases["add_rms_norm, capture"].num_bytes == 5 * row
    assert cases["silu_mul"].num_bytes == 16 * 12 * 2 * 3
    assert cases["move_rows"].num_bytes == 2 * 3 * (4 * 2 * 4 * 2 + 8 * 2)


def test_few_rows_move_nothing() -> None:
    cases = OpCases(TINY, 15, ReferenceOps(), device=torch.device("cpu")).take(["move", "embed"])
    assert [name for name, _ in cases] == ["embed"]
