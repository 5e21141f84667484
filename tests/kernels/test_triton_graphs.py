"""The Triton ops of a step, captured once and replayed over new inputs, at the size of a large model's step."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kernels.reference.ops import ReferenceOps

pytest.importorskip("triton", reason="triton is not installed here")
from kernels.triton_ops.ops import TritonOps

pytestmark = pytest.mark.gpu
ROWS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, SLOTS = 100, 4096, 14336, 32, 8, 128, 4096


@dataclass(slots=True)
class Inputs:
    """Of one small step: everything that changes from replay to replay."""

    ids: Tensor
    slots: Tensor
    cos_sin: Tensor
    src: Tensor
    dst: Tensor

    @classmethod
    def make(cls, seed: int) -> Inputs:
        generator = torch.Generator().manual_seed(seed)
        moved = torch.randperm(SLOTS, generator=generator)[:80]
        angle = torch.rand(ROWS, HEAD_DIM // 2, generator=generator) * 1000
        inputs = cls(
            ids=torch.randint(1000, (ROWS,), generator=generator),
            slots=torch.randperm(SLOTS, generator=generator)[:ROWS],
            cos_sin=torch.cat((angle.cos(), angle.sin()), 1),
            src=moved[:40],
            dst=moved[40:],
        )
        return cls(*(getattr(inputs, name).cuda() for name in cls.__slots__))

    def load(self, other: Inputs) -> None:
        for name in self.__slots__:
            getattr(self, name).copy_(getattr(other, name))


def _step(ops: ReferenceOps, inputs: Inputs, weights: dict[str, Tensor], pools: list[Tensor]) -> list[Tensor]:
    """A layer without attention."""
    k_cache, v_cache, features = pools
    ops.move_rows(pools, inputs.src, inputs.dst)
    residual = ops.embed(inputs.ids, weights["table"])
    aux = torch.zeros(ROWS, 2 * HIDDEN, dtype=residual.dtype, device="cuda")
    x = ops.rms_norm(residual, weights["norm"], 1e-5)
    qkv = ops.linear(x, weights["qkv"], weights["bias"]).view(ROWS, -1, HEAD_DIM)
    q, k, v = qkv.split_with_sizes([HEADS, KV_HEADS, KV_HEADS], dim=1)
    q = ops.rope_append(q, k, v, inputs.cos_sin, inputs.slots, k_cache, v_cache)
    x = ops.add_rms_norm(q.flatten(1), residual, weights["norm"], 1e-5, capture=aux[:, HIDDEN:])
    x = ops.linear(ops.silu_mul(ops.linear(x, weights["gate_up"])), weights["down"])
    ops.scatter_rows(features, inputs.slots, x)
    return [ops.logits(x, weights["table"]), residual, aux, *pools]


def test_a_captured_step_follows_its_inputs() -> None:
    generator = torch.Generator("cuda").manual_seed(0)

    def random(*shape: int) -> Tensor:
        return (torch.randn(shape, generator=generator, device="cuda") * shape[-1] ** -0.5).bfloat16()

    weights = {
        "table": random(1000, HIDDEN),
        "norm": torch.ones(HIDDEN, dtype=torch.bfloat16, device="cuda"),
        "qkv": random((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN),
        "bias": random((HEADS + 2 * KV_HEADS) * HEAD_DIM),
        "gate_up": random(2 * INNER, HIDDEN),
        "down": random(HIDDEN, INNER),
    }
    start = [random(SLOTS, KV_HEADS, HEAD_DIM), random(SLOTS, KV_HEADS, HEAD_DIM), random(SLOTS, HIDDEN)]
    pools = [pool.clone() for pool in start]
    ops, static = TritonOps("cuda"), Inputs.make(0)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        _step(ops, static, weights, pools)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = _step(ops, static, weights, pools)
    for seed in (1, 2, 3):
        expected_pools = [pool.clone() for pool in start]
        for pool, initial in zip(pools, start, strict=True):
            pool.copy_(initial)
        static.load(Inputs.make(seed))
        graph.replay()
        expected = _step(ReferenceOps("cuda"), static, weights, expected_pools)
        for got_part, expected_part in zip(got, expected, strict=True):
            torch.testing.assert_close(got_part.float(), expected_part.float(), rtol=2**-6, atol=2**-5)


def test_a_slot_past_two_to_the_31_values_is_written_where_it_lies() -> None:
    num_slots = 2**31 // (KV_HEADS * HEAD_DIM) + 100
    k_cache, v_cache = (
        torch.zeros(num_slots, KV_HEADS, HEAD_DIM, dtype=torch.bfloat16, device="cuda") for _ in range(2)
    )
    qkv = torch.randn(2, HEADS + 2 * KV_HEADS, HEAD_DIM, device="cuda").bfloat16()
    q, k, v = qkv.split_with_sizes([HEADS, KV_HEADS, KV_HEADS], dim=1)
    slots = torch.tensor([num_slots - 1, 3], device="cuda")
    ops = TritonOps("cuda")
    ops.rope_append(q, k, v, torch.ones(2, HEAD_DIM, device="cuda"), slots, k_cache, v_cache)
    assert torch.equal(v_cache[slots], v) and k_cache[num_slots - 1].any()
    ops.move_rows([k_cache, v_cache], slots[:1], slots[:1] - 50)
    assert torch.equal(v_cache[num_slots - 51], v[0])
