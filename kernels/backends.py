"""Which backend fulfils the op contract: chosen once, by name, and passed down as an object."""

from __future__ import annotations

import torch

from kernels.cpu_ops.native import load_native
from kernels.cpu_ops.ops import CpuOps
from kernels.ops import Ops
from kernels.reference.ops import ReferenceOps
from kernels.round_tables import missing_tables

BACKENDS = ("auto", "cpu", "flashinfer", "reference", "triton")


def load_ops(
    name: str, device: torch.device | str, *, dtype: torch.dtype | None = None, num_threads: int | None = None
) -> Ops:
    """The backend of that name on that device. ``auto`` is the fastest that runs there: triton on CUDA, cpu on a CPU.

    dtype: of the weights; the kernels of cpu have none for float16, which ``auto`` leaves to reference. num_threads is
    for a CPU; None leaves torch's settings alone. Where the kernels have threads of their own, torch is set to one: a
    second pool that fights for the cores made a draft's tree of 10 ms take 13 to 80 ms (median, two cores of an AMD
    EPYC 7003). Raises ValueError for an unknown name, for a backend that does not run on the device, for one whose
    library or C extension is not installed, and for one without kernels for the dtype.
    """
    device = torch.device(device)
    if name not in BACKENDS:
        raise ValueError(f"the backend is {name!r}; it must be one of {', '.join(BACKENDS)}")
    if name == "cpu" and device.type != "cpu":
        raise ValueError(f"the backend cpu does not run on {device}; choose auto or reference")
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    if name in ("flashinfer", "triton") or (name == "auto" and device.type == "cuda"):
        return _load_gpu_ops("triton" if name == "auto" else name, device)
    if name == "reference" or device.type != "cpu":
        return ReferenceOps(device)
    if dtype is torch.float16:
        if name == "cpu":
            raise ValueError("the backend cpu has no kernels for float16; choose auto or reference, or another dtype")
        return ReferenceOps(device)
    ops = CpuOps(load_native(num_threads=num_threads))
    if num_threads is not None and ops.has_threads:
        torch.set_num_threads(1)
    return ops


def _load_gpu_ops(name: str, device: torch.device) -> Ops:
    """Imports the backend's library, which takes seconds: no other backend waits for it."""
    try:
        import triton

        if name == "flashinfer":
            import flashinfer  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"the backend {name} cannot be imported ({error}): pip install 'paceline[gpu]', or choose reference"
        ) from error
    interprets = name == "triton" and device.type == "cpu" and triton.knobs.runtime.interpret
    if device.type != "cuda" and not interprets:
        raise ValueError(f"the backend {name} runs on CUDA devices, not on {device}; choose auto")
    if missing := missing_tables():
        raise ValueError(f"the backend {name} needs the C extension: {missing}")
    if name == "flashinfer":
        from kernels.flashinfer_ops.ops import FlashInferOps

        return FlashInferOps(device)
    from kernels.triton_ops.ops import TritonOps

    return TritonOps(device)
