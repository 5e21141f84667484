"""Which backend a name gives, and what is said where it does not run."""

from __future__ import annotations

import sys

import pytest
import torch

from kernels import round_tables
from kernels.backends import load_ops
from kernels.ops import Ops
from tests.support.extension import needs_extension

NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="triton compiles for the GPU here")


@NO_CUDA
@needs_extension
def test_triton_runs_on_the_cpu_where_it_is_interpreted() -> None:
    pytest.importorskip("triton")
    ops: Ops = load_ops("triton", "cpu")
    assert ops.name == "triton" and not ops.supports_graphs


@NO_CUDA
def test_triton_refuses_a_cpu_where_it_is_not_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    with pytest.raises(ValueError, match="the backend triton runs on CUDA devices, not on cpu; choose auto"):
        load_ops("triton", "cpu")


@pytest.mark.parametrize("name", ["auto", "triton"])
def test_a_backend_without_its_library_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ValueError, match=r"triton cannot be imported .*pip install 'paceline\[gpu\]'"):
        load_ops(name, "cuda")


def test_a_gpus_backend_without_the_c_extension_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(round_tables, "MISSING", "no module; install a C compiler and reinstall")
    with pytest.raises(ValueError, match="triton needs the C extension: no module; install a C compiler and reinstall"):
        load_ops("triton", "cuda")


def test_flashinfer_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    with pytest.raises(ValueError, match=r"flashinfer cannot be imported .*pip install 'paceline\[gpu\]'"):
        load_ops("flashinfer", "cuda")


@pytest.mark.gpu
def test_auto_is_triton_on_a_gpu() -> None:
    ops = load_ops("auto", "cuda")
    assert ops.name == "triton" and ops.supports_graphs


def test_the_reference_captures_nothing() -> None:
    assert not load_ops("reference", "cpu").supports_graphs and not load_ops("cpu", "cpu").supports_graphs


def test_float16_on_a_cpu_is_the_references() -> None:
    assert load_ops("auto", "cpu", dtype=torch.float16).name == "reference"
    with pytest.raises(ValueError, match="cpu has no kernels for float16; choose auto or reference"):
        load_ops("cpu", "cpu", dtype=torch.float16)
