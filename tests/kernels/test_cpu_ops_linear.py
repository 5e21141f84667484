"""The C matrix product against torch, and its promise that a row's result does not depend on its company."""

from __future__ import annotations

import pytest
import torch

from kernels.cpu_ops.native import NativeKernels

_native = pytest.importorskip("kernels.cpu_ops._native", reason="the C extension is not built here")

ISAS = _native.isas()
DTYPES = [torch.bfloat16, torch.float32]
SHAPES = [
    (1, 1, 1),
    (1, 5, 7),
    (2, 13, 31),
    (3, 37, 32),
    (4, 12, 33),
    (5, 49, 576),
    (6, 960, 576),
    (7, 3, 129),
    (19, 50, 100),
    (5, 27, 1536),
    (3, 101, 801),
]


def _operands(
    rows: int, num_out: int, width: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows * 1000 + num_out + width)
    x = torch.randn(rows, width, generator=generator).to(dtype)
    weight = torch.randn(num_out, width, generator=generator).to(dtype)
    return x, weight, torch.randn(num_out, generator=generator).to(dtype)


def _packed(kernels: NativeKernels, weight: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(weight)
    kernels.pack(weight, out)
    return out


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "num_out", "width"), SHAPES)
def test_linear_equals_the_product_in_double(rows: int, num_out: int, width: int, dtype: torch.dtype, isa: str) -> None:
    x, weight, bias = _operands(rows, num_out, width, dtype)
    kernels = NativeKernels(_native, isa=isa)
    got = kernels.linear(x, _packed(kernels, weight), bias, out_dtype=torch.float32)
    exact = x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [576, 101])
def test_a_rows_result_is_the_same_bits_in_any_company(width: int, dtype: torch.dtype, isa: str) -> None:
    kernels = NativeKernels(_native, isa=isa)
    x, weight, bias = _operands(70, 53, width, dtype)
    weight = _packed(kernels, weight)
    whole = kernels.linear(x, weight, bias)
    for rows in range(1, 26):
        assert torch.equal(kernels.linear(x[:rows], weight, bias), whole[:rows]), rows
        assert torch.equal(kernels.linear(x[70 - rows :], weight, bias), whole[70 - rows :]), rows


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_rows_result_is_the_same_bits_with_any_thread_count(dtype: torch.dtype, isa: str) -> None:
    x, weight, bias = _operands(7, 500, 576, dtype)
    weight = _packed(NativeKernels(_native, isa=isa), weight)
    one, three = (NativeKernels(_native, isa=isa, num_threads=count).linear(x, weight, bias) for count in (1, 3))
    assert torch.equal(one, three)


@pytest.mark.parametrize("isa", ISAS)
def test_bf16_results_round_to_nearest_even(isa: str) -> None:
    kernels = NativeKernels(_native, isa=isa)
    x, weight, bias = _operands(3, 40, 96, torch.bfloat16)
    weight = _packed(kernels, weight)
    wide = kernels.linear(x, weight, bias, out_dtype=torch.float32)
    assert torch.equal(kernels.linear(x, weight, bias), wide.bfloat16())


@pytest.mark.parametrize("isa", ISAS)
def test_infinities_and_nans_pass_through(isa: str) -> None:
    x = torch.tensor([[float("inf"), 1.0], [float("nan"), 1.0], [2.0, 1.0]]).bfloat16()
    got = NativeKernels(_native, isa=isa).linear(x, torch.ones(3, 2).bfloat16())
    assert (
        torch.isinf(got[0]).all()
        and torch.isnan(got[1]).all()
        and torch.equal(got[2], torch.full((3,), 3.0).bfloat16())
    )


@pytest.mark.parametrize("isa", ISAS)
def test_a_strided_input_is_taken_as_it_reads(isa: str) -> None:
    kernels = NativeKernels(_native, isa=isa)
    x, weight, _ = _operands(4, 9, 64, torch.float32)
    assert torch.equal(
        kernels.linear(x[:, ::2], _packed(kernels, weight[:, :32])),
        kernels.linear(x[:, ::2].contiguous(), _packed(kernels, weight[:, :32])),
    )


def test_no_rows_give_no_rows() -> None:
    got = NativeKernels(_native).linear(torch.empty(0, 8), torch.ones(5, 8))
    assert got.shape == (0, 5)


def test_only_one_openmp_runtime_is_mapped() -> None:
    with open("/proc/self/maps") as maps:
        runtimes = {line.split()[-1] for line in maps if "libgomp" in line or "libomp" in line or "libiomp" in line}
    assert len(runtimes) == 1, runtimes


def test_an_unknown_instruction_set_is_refused() -> None:
    with pytest.raises(ValueError, match="'sse9' does not run here"):
        NativeKernels(_native, isa="sse9")
