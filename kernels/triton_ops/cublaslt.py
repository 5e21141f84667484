"""CublasLt: products by each of the algorithms that cuBLASLt offers for a shape; torch takes the first offered.

It binds the few functions needed of the library that torch has loaded:
https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api. Its matrices are column-major, so that it is told of
out.T [num_out, rows] = weight @ x.T.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from ctypes import c_float, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

import torch
from torch import Tensor

from kernels.triton_ops.product import Operands, ProductShape

_SONAMES = ("libcublasLt.so.13", "libcublasLt.so.12")
_WORKSPACE_BYTES = 64 << 20
_MAX_OFFERED = 16
_DATA_TYPES = {torch.float16: 2, torch.bfloat16: 14}  # cudaDataType_t
_COMPUTE_32F, _SCALE_32F = 68, 0
_TRANSA, _EPILOGUE, _BIAS_POINTER = 3, 7, 8  # cublasLtMatmulDescAttributes_t
_EPILOGUE_BIAS = 4
_MAX_WORKSPACE_BYTES, _REDUCTION_SCHEME_MASK = 1, 3  # cublasLtMatmulPreferenceAttributes_t
_REDUCTION_IN_FP32 = 2  # parts of a split sum are added in fp32, or the sum is not split
_ONE, _ZERO = c_float(1.0), c_float(0.0)

_SIGNATURES: dict[str, tuple[type, ...]] = {
    "Create": (c_void_p,),
    "Destroy": (c_void_p,),
    "MatmulDescCreate": (c_void_p, c_int, c_int),
    "MatmulDescDestroy": (c_void_p,),
    "MatmulDescSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "MatrixLayoutCreate": (c_void_p, c_int, c_uint64, c_uint64, c_int64),
    "MatrixLayoutDestroy": (c_void_p,),
    "MatmulPreferenceCreate": (c_void_p,),
    "MatmulPreferenceDestroy": (c_void_p,),
    "MatmulPreferenceSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "MatmulAlgoGetHeuristic": (*[c_void_p] * 7, c_int, c_void_p, c_void_p),
    "Matmul": (*[c_void_p] * 14, c_size_t, c_void_p),
}


class CublasLtError(RuntimeError):
    """The library is not loaded, or a call of it failed."""


class Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t."""

    _fields_ = (("data", c_uint64 * 8),)


class Offer(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace_bytes", c_size_t),
        ("status", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


class CublasLt:
    """Owns a workspace that all its products share, so that one object serves one stream."""

    def __init__(self, device: torch.device) -> None:
        """Raises CublasLtError where torch has loaded no cuBLASLt that is known here."""
        self._library = _Library()
        with torch.cuda.device(device):
            self._handle = _Owned(self._library, "")
        self._workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)

    def products(self, operands: Operands) -> list[CublasLtProduct]:
        """By the algorithms on offer for operands of this shape that are aligned, the likeliest first.

        Raises CublasLtError where there is none.
        """
        problem = _Problem(self._library, operands.shape)
        problem.set_bias(operands.bias)
        return [
            CublasLtProduct(self._library, self._handle, self._workspace, problem, algorithm)
            for algorithm in problem.algorithms(self._handle)
        ]


class CublasLtProduct:
    """A Product by one algorithm. A captured graph that holds it needs the CublasLt that it came from."""

    def __init__(
        self, library: _Library, handle: _Owned, workspace: Tensor, problem: _Problem, algorithm: Algorithm
    ) -> None:
        self._library = library
        self._handle = handle
        self._workspace = workspace
        self._problem = problem
        self._algorithm = algorithm

    def __call__(self, operands: Operands, out: Tensor) -> None:
        """Raises CublasLtError where the algorithm does not run after all."""
        problem = self._problem
        problem.set_bias(operands.bias)
        self._library.call(
            "Matmul",
            self._handle.pointer,
            problem.product.pointer,
            ctypes.byref(_ONE),
            operands.weight.data_ptr(),
            problem.weight.pointer,
            operands.x.data_ptr(),
            problem.x.pointer,
            ctypes.byref(_ZERO),
            out.data_ptr(),
            problem.out.pointer,
            out.data_ptr(),
            problem.out.pointer,
            ctypes.byref(self._algorithm),
            self._workspace.data_ptr(),
            _WORKSPACE_BYTES,
            torch.cuda.current_stream(out.device).cuda_stream,
        )


class _Library:
    """The functions, by their names without the prefix."""

    def __init__(self) -> None:
        library = _loaded_library()
        self._status_name = library.cublasLtGetStatusName
        self._status_name.argtypes, self._status_name.restype = (c_int,), ctypes.c_char_p
        self._functions = {}
        for name, arguments in _SIGNATURES.items():
            function = self._functions[name] = getattr(library, f"cublasLt{name}")
            function.argtypes, function.restype = arguments, c_int

    def call(self, name: str, *arguments: object) -> None:
        status = self._functions[name](*arguments)
        if status != 0:
            status_name = self._status_name(status).decode()
            raise CublasLtError(f"cublasLt{name} returned {status} ({status_name}); torch's own product serves without")


class _Owned:
    """An opaque object of the library, destroyed with this one."""

    def __init__(self, library: _Library, noun: str, *arguments: int) -> None:
        self.pointer = c_void_p()
        library.call(f"{noun}Create", ctypes.byref(self.pointer), *arguments)
        weakref.finalize(self, library.call, f"{noun}Destroy", self.pointer).atexit = False


class _Problem:
    """The descriptors of a shape's product."""

    def __init__(self, library: _Library, shape: ProductShape) -> None:
        def layout(rows: int, columns: int, stride: int) -> _Owned:
            return _Owned(library, "MatrixLayout", _DATA_TYPES[shape.dtype], rows, columns, stride)

        self._library = library
        self.weight = layout(shape.width, shape.num_out, shape.width)
        self.x = layout(shape.width, shape.rows, shape.x_stride)
        self.out = layout(shape.num_out, shape.rows, shape.num_out)
        self.product = _Owned(library, "MatmulDesc", _COMPUTE_32F, _SCALE_32F)
        self._set("MatmulDesc", self.product, _TRANSA, c_int(1))
        if shape.has_bias:
            self._set("MatmulDesc", self.product, _EPILOGUE, c_int(_EPILOGUE_BIAS))

    def set_bias(self, bias: Tensor | None) -> None:
        """Of the next product; as with its other operands, the pointer is read when that is launched."""
        if bias is not None:
            self._set("MatmulDesc", self.product, _BIAS_POINTER, c_void_p(bias.data_ptr()))

    def algorithms(self, handle: _Owned) -> list[Algorithm]:
        preference = _Owned(self._library, "MatmulPreference")
        self._set("MatmulPreference", preference, _MAX_WORKSPACE_BYTES, c_uint64(_WORKSPACE_BYTES))
        self._set("MatmulPreference", preference, _REDUCTION_SCHEME_MASK, c_uint32(_REDUCTION_IN_FP32))
        offers, count = (Offer * _MAX_OFFERED)(), c_int()
        self._library.call(
            "MatmulAlgoGetHeuristic",
            handle.pointer,
            self.product.pointer,
            self.weight.pointer,
            self.x.pointer,
            self.out.pointer,
            self.out.pointer,
            preference.pointer,
            _MAX_OFFERED,
            offers,
            ctypes.byref(count),
        )
        return [Algorithm.from_buffer_copy(offer.algorithm) for offer in offers[: count.value] if offer.status == 0]

    def _set(self, noun: str, owned: _Owned, attribute: int, value: ctypes._SimpleCData[Any]) -> None:
        self._library.call(f"{noun}SetAttribute", owned.pointer, attribute, ctypes.byref(value), ctypes.sizeof(value))


def _loaded_library() -> ctypes.CDLL:
    for soname in _SONAMES:
        try:
            return ctypes.CDLL(soname, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError:
            continue
    raise CublasLtError(f"torch has loaded none of {', '.join(_SONAMES)}; its own products serve without")
