"""A layer's halves in one C call give the bits of the ops that they join."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.cpu_ops.native import NativeKernels
from kernels.cpu_ops.ops import CpuOps
from kernels.ops import AttentionBatch, AttentionWeights, HeadNorms
from kernels.reference.ops import ReferenceOps

_native = pytest.importorskip("kernels.cpu_ops._native", reason="the C extension is not built here")

DTYPES = [torch.bfloat16, torch.float32]
ROWS, INPUT, HIDDEN, HEADS, KV_HEADS, DIM, SLOTS = 7, 96, 80, 4, 2, 32, 64


@pytest.fixture(params=_native.isas())
def ops(request: pytest.FixtureRequest) -> CpuOps:
    return CpuOps(NativeKernels(_native, isa=request.param, num_threads=2))


class _Case:
    """A chunk of four rows and a tree of three after 8 and 9 tokens of KV."""

    def __init__(self, dtype: torch.dtype, *, bias: bool, norms: bool) -> None:
        generator = torch.Generator().manual_seed(0)

        def random(*shape: int) -> torch.Tensor:
            return (torch.randn(*shape, generator=generator) * 0.3).to(dtype)

        width = (HEADS + 2 * KV_HEADS) * DIM
        self.x = random(ROWS, INPUT)
        self.weights = AttentionWeights(
            qkv=random(width, INPUT),
            output=random(HIDDEN, HEADS * DIM),
            num_heads=HEADS,
            num_kv_heads=KV_HEADS,
            head_dim=DIM,
            qkv_bias=random(width) if bias else None,
            output_bias=random(HIDDEN) if bias else None,
            norms=HeadNorms(random(DIM), random(DIM), 1e-5) if norms else None,
        )
        self.batch = AttentionBatch(
            q_indptr=np.array([0, 4, 7], np.int32),
            prefix_len=np.array([8, 9], np.int32),
            local_len=np.array([4, 3], np.int32),
            page_indptr=np.array([0, 3, 6], np.int32),
            page_ids=np.array([5, 0, 7, 2, 9, 1], np.int32),
            is_causal=np.array([True, False]),
            ancestors=np.array([0, 0, 0, 0, 1, 3, 5], np.uint64),
            page_size=4,
        )
        self.cos_sin = torch.randn(ROWS, DIM, generator=generator)
        self.slots = torch.tensor([28, 29, 30, 31, 37, 38, 39])
        self.caches = random(SLOTS, KV_HEADS, DIM), random(SLOTS, KV_HEADS, DIM)

    def run(self, ops: CpuOps, function: object) -> list[torch.Tensor]:
        k_cache, v_cache = (cache.clone() for cache in self.caches)
        out = function(  # type: ignore[operator]
            ops,
            self.x,
            self.weights,
            ops.plan_attention(self.batch),
            cos_sin=self.cos_sin,
            slots=self.slots,
            k_cache=k_cache,
            v_cache=v_cache,
        )
        return [out, k_cache, v_cache]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("bias", "norms"), [(False, False), (True, False), (False, True)])
def test_an_attention_block_is_its_ops_in_turn(ops: CpuOps, dtype: torch.dtype, bias: bool, norms: bool) -> None:
    case = _Case(dtype, bias=bias, norms=norms)
    joined, apart = case.run(ops, CpuOps.attention_block), case.run(ops, ReferenceOps.attention_block)
    assert all(torch.equal(a, b) for a, b in zip(joined, apart, strict=True))


def test_a_slot_outside_the_cache_is_an_error_before_anything_is_written(ops: CpuOps) -> None:
    case = _Case(torch.float32, bias=False, norms=False)
    case.slots[2] = SLOTS
    with pytest.raises(IndexError, match="slot 64 of row 2"):
        case.run(ops, CpuOps.attention_block)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 5, 70])
def test_an_mlp_is_its_ops_in_turn(ops: CpuOps, rows: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(rows)
    x, gate_up, down = (
        torch.randn(*shape, generator=generator).to(dtype) for shape in ((rows, 96), (2 * 160, 96), (96, 160))
    )
    assert torch.equal(ops.mlp(x, gate_up, down), ReferenceOps.mlp(ops, x, gate_up, down))
