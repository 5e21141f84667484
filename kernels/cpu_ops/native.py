"""The door to the C extension: finds it, checks what torch hands it, and passes addresses on."""

from __future__ import annotations

import logging
from types import ModuleType

import torch
from torch import Tensor

from kernels.cpu_ops.tiles import AttentionTiles
from kernels.cpu_ops.weights import address_of_weight, can_round, fits_weight, rounded_shape
from kernels.extension import EXTENSION, MISSING
from kernels.ops import AttentionWeights

_LOG = logging.getLogger(__name__)
_MAX_HEAD_DIM = 512  # common.h


class NativeKernels:
    """The kernels of one instruction set, for bf16 and fp32, summed in fp32. Thread-safe: it holds no buffers.

    A row's result is the same bits whatever other rows are there, however many, and however many threads compute.
    ``isa`` is a name out of the extension's ``isas()``; None takes the best that this CPU runs. num_threads None takes
    torch's number.
    """

    def __init__(self, module: ModuleType, *, isa: str | None = None, num_threads: int | None = None) -> None:
        names = module.isas()
        if isa is not None and isa not in names:
            raise ValueError(f"instruction set {isa!r} does not run here; choose one of {', '.join(names)}")
        self.isa: str = names[0] if isa is None else isa
        self.num_threads = num_threads or torch.get_num_threads()
        self.isa_index = names.index(self.isa)
        self.module = module

    def pack(self, weight: Tensor, out: Tensor) -> None:
        """MUTATES out = the weight [out, in] in the order that the products read; out is contiguous."""
        weight = weight.contiguous()
        num_out, width = weight.shape
        assert out.shape == weight.shape and out.dtype == weight.dtype and out.is_contiguous()
        self.module.pack(self.isa_index, weight.data_ptr(), out.data_ptr(), num_out, width, weight.element_size())

    def pack_rounded(self, weight: Tensor, out: Tensor) -> None:
        """MUTATES out = the weight that ``weights.can_round``, each row rounded to 8 bits with a scale of its own."""
        num_out, width = weight.shape
        assert can_round(weight) and out.shape == rounded_shape(weight)
        assert out.dtype == torch.int8 and out.is_contiguous()
        wide = weight.float()
        scales = wide.abs().amax(1) / 127
        values = (wide / scales.clamp_min(torch.finfo(torch.float32).tiny)[:, None]).round().to(torch.int8)
        self.module.pack_rounded(self.isa_index, values.data_ptr(), out.data_ptr(), num_out, width)
        out.view(-1)[num_out * width :].view(torch.float32).copy_(scales)

    def linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out_dtype: torch.dtype | None = None
    ) -> Tensor:
        """x [rows, in] @ weight[out, in].T + bias -> [rows, out] of out_dtype (None: x's), bf16 or fp32.

        x, weight and bias share one dtype; the weight is packed, as in all products here, or rounded.
        """
        rows, width = x.shape
        num_out = weight.shape[0]
        x = x.contiguous()
        out = torch.empty((rows, num_out), dtype=out_dtype or x.dtype)
        assert width > 0 and fits_weight(weight, x)
        assert bias is None or (bias.dtype == x.dtype and bias.shape == (num_out,) and bias.is_contiguous())
        self.module.linear(
            self.isa_index,
            x.data_ptr(),
            *address_of_weight(weight),
            address(bias),
            out.data_ptr(),
            rows,
            num_out,
            width,
            _is_bf16(x),
            _is_bf16(out),
            self.num_threads,
        )
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, *, residual: Tensor | None = None) -> Tensor:
        """Ops.rms_norm over the last dimension of x; with a residual, Ops.add_rms_norm, which MUTATES it."""
        x = x.contiguous()
        width = x.shape[-1]
        out = torch.empty_like(x)
        assert weight.shape == (width,) and weight.dtype == x.dtype and weight.is_contiguous()
        assert residual is None or (
            residual.shape == x.shape and residual.dtype == x.dtype and residual.is_contiguous()
        )
        self.module.rms_norm(
            self.isa_index,
            x.data_ptr(),
            weight.data_ptr(),
            address(residual),
            out.data_ptr(),
            x.numel() // width,
            width,
            _is_bf16(x),
            self.num_threads,
            eps,
        )
        return out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Ops.silu_mul."""
        gate_up = gate_up.contiguous()
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty((rows, width), dtype=gate_up.dtype)
        self.module.silu_mul(
            self.isa_index,
            gate_up.data_ptr(),
            out.data_ptr(),
            rows,
            width,
            _is_bf16(gate_up),
            self.num_threads,
        )
        return out

    def rope(self, q: Tensor, k: Tensor, cos_sin: Tensor) -> None:
        """Ops.rope. The heads of a row must lie side by side; rows may be apart."""
        rows, q_heads, head_dim = q.shape
        assert q.dtype == k.dtype and cos_sin.dtype == torch.float32 and cos_sin.is_contiguous()
        assert cos_sin.shape == (rows, head_dim) and head_dim <= _MAX_HEAD_DIM and head_dim % 2 == 0
        self.module.rope(
            self.isa_index,
            q.data_ptr(),
            k.data_ptr(),
            cos_sin.data_ptr(),
            rows,
            _row_stride(q),
            _row_stride(k),
            q_heads,
            k.shape[1],
            head_dim,
            _is_bf16(q),
            self.num_threads,
        )

    def append(self, rows: Tensor, slots: Tensor, cache: Tensor) -> None:
        """MUTATES cache[slots] = rows, [rows, heads, d] into [slots, heads, d]. IndexError for a slot out of range."""
        assert rows.dtype == cache.dtype and rows.shape[1:] == cache.shape[1:] and cache.is_contiguous()
        assert slots.dtype == torch.int64 and slots.shape == rows.shape[:1] and slots.is_contiguous()
        size = cache.element_size()
        self.module.append(
            rows.data_ptr(),
            _row_stride(rows) * size,
            slots.data_ptr(),
            cache.data_ptr(),
            rows.shape[0],
            cache.shape[0],
            cache.shape[1] * cache.shape[2] * size,
        )

    def attention_block(
        self,
        x: Tensor,
        weights: AttentionWeights,
        tiles: AttentionTiles,
        *,
        cos_sin: Tensor,
        slots: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
    ) -> Tensor:
        """Ops.attention_block over the tiles, whose pages lie in the caches. IndexError for a slot out of range."""
        rows, width = x.shape
        num_slots, kv_heads, head_dim = k_cache.shape
        hidden = weights.output.shape[0]
        norms = weights.norms
        x = x.contiguous()
        out = torch.empty((rows, hidden), dtype=x.dtype)
        assert x.dtype == k_cache.dtype == v_cache.dtype and k_cache.shape == v_cache.shape
        assert fits_weight(weights.qkv, x) and kv_heads == weights.num_kv_heads and head_dim == weights.head_dim
        assert k_cache.is_contiguous() and v_cache.is_contiguous() and tiles.num_slots <= num_slots
        assert cos_sin.shape == (rows, head_dim) and cos_sin.dtype == torch.float32 and cos_sin.is_contiguous()
        assert slots.dtype == torch.int64 and slots.shape == (rows,) and slots.is_contiguous()
        self.module.attention_block(
            self.isa_index,
            x.data_ptr(),
            *address_of_weight(weights.qkv),
            address(weights.qkv_bias),
            address(None if norms is None else norms.q),
            address(None if norms is None else norms.k),
            *address_of_weight(weights.output),
            address(weights.output_bias),
            cos_sin.data_ptr(),
            slots.data_ptr(),
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            out.data_ptr(),
            tiles.ancestors.data_ptr(),
            tiles.page_ids.data_ptr(),
            tiles.table.data_ptr(),
            len(tiles.table),
            rows,
            width,
            hidden,
            weights.num_heads,
            kv_heads,
            head_dim,
            tiles.page_size,
            num_slots,
            _is_bf16(x),
            self.num_threads,
            0.0 if norms is None else norms.eps,
            head_dim**-0.5,
        )
        return out

    def mlp(self, x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        """Ops.mlp."""
        rows, hidden = x.shape
        inner = gate_up.shape[0] // 2
        x = x.contiguous()
        out = torch.empty_like(x)
        assert fits_weight(gate_up, x) and down.is_contiguous() and down.shape[0] == hidden
        self.module.mlp(
            self.isa_index,
            x.data_ptr(),
            *address_of_weight(gate_up),
            *address_of_weight(down),
            out.data_ptr(),
            rows,
            hidden,
            inner,
            _is_bf16(x),
            self.num_threads,
        )
        return out

    def top_k(self, scores: Tensor, k: int, *, is_log_prob: bool) -> tuple[Tensor, Tensor]:
        """Ops.top_k, or Ops.top_k_log_probs. scores are fp32 without NaN."""
        rows, width = scores.shape
        scores = scores.contiguous()
        values = torch.empty((rows, k), dtype=torch.float32)
        indices = torch.empty((rows, k), dtype=torch.int64)
        assert scores.dtype == torch.float32 and 0 < k <= width
        self.module.top_k(
            self.isa_index,
            scores.data_ptr(),
            values.data_ptr(),
            indices.data_ptr(),
            rows,
            width,
            k,
            is_log_prob,
            self.num_threads,
        )
        return values, indices

    @staticmethod
    def fits_attention(num_heads: int, num_kv_heads: int, head_dim: int) -> bool:
        """Whether ``attention`` knows these heads: a multiple of 32 values, at most 64 query heads a KV head."""
        return head_dim % 32 == 0 and head_dim <= _MAX_HEAD_DIM and num_heads <= 64 * num_kv_heads

    def attention(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, *, tiles: AttentionTiles) -> Tensor:
        """AttentionPlan.run over the tiles, whose pages must lie in the caches."""
        num_slots, kv_heads, head_dim = k_cache.shape
        heads = q.shape[1]
        out = torch.empty(q.shape, dtype=q.dtype)
        assert q.dtype == k_cache.dtype == v_cache.dtype and k_cache.shape == v_cache.shape
        assert k_cache.is_contiguous() and v_cache.is_contiguous() and tiles.num_slots <= num_slots
        assert q.shape[2] == head_dim and heads % kv_heads == 0 and self.fits_attention(heads, kv_heads, head_dim)
        self.module.attention(
            self.isa_index,
            q.data_ptr(),
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            out.data_ptr(),
            tiles.ancestors.data_ptr(),
            tiles.page_ids.data_ptr(),
            tiles.table.data_ptr(),
            len(tiles.table),
            _row_stride(q),
            heads,
            kv_heads,
            head_dim,
            tiles.page_size,
            _is_bf16(q),
            self.num_threads,
            head_dim**-0.5,
        )
        return out


def address(tensor: Tensor | None) -> int:
    """0 for none."""
    return 0 if tensor is None else tensor.data_ptr()


def _is_bf16(tensor: Tensor) -> bool:
    """Asserts that the C kernels know the dtype."""
    is_bf16 = tensor.dtype == torch.bfloat16
    assert is_bf16 or tensor.dtype == torch.float32
    return is_bf16


def _row_stride(tensor: Tensor) -> int:
    """Elements from row to row of [rows, heads, d]."""
    row, head, element = tensor.stride()
    assert element == 1 and (head == tensor.shape[2] or tensor.shape[1] == 1)
    return row


def load_native(*, num_threads: int | None = None) -> NativeKernels | None:
    """The extension's kernels, or None (and one log line) where it was not built or does not load."""
    if EXTENSION is None:
        _LOG.warning("CPU kernels are off, torch computes instead (slower): %s", MISSING)
        return None
    kernels = NativeKernels(EXTENSION, num_threads=num_threads)
    _LOG.info("CPU kernels: %s, %d threads", kernels.isa, kernels.num_threads)
    return kernels
