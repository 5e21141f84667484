"""TargetModel: one ragged step of prefill chunks and trees through the target, features captured on the way."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from engine.config import ModelConfig, load_model_config
from engine.features import FeatureFuser, load_fuser
from engine.layers import DecoderLayer, LayerShape, RowContext
from engine.plan import StepPlan
from engine.pool import TargetCache
from engine.rope import cos_sin_table
from engine.tp import TpGroup, shard, validate_tp
from engine.weights import open_weights
from engine.weights.loader import WeightLoader
from kernels.ops import Ops


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Of one step. Rank 0 holds them; elsewhere both are None."""

    logits: Tensor | None  # [nodes, V] fp32, in the order of the plan's trees
    features: Tensor | None  # [rows, Hd], None without a head


class TargetModel:
    """This rank's share of the target, and on rank 0 the head's fc. Shapes depend on the row count alone."""

    def __init__(self, config: ModelConfig, loader: WeightLoader, *, fuser: FeatureFuser | None, ops: Ops) -> None:
        shape = LayerShape(
            input_size=config.hidden_size,
            hidden_size=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            intermediate_size=config.intermediate_size,
            eps=config.rms_norm_eps,
            qkv_bias=config.attention_bias,
            output_bias=config.output_bias,
            qk_norm=config.qk_norm,
        )
        table = (config.vocab_size, config.hidden_size)
        self.config = config
        self._embedding = loader.replicated("model.embed_tokens.weight", table)
        self._layers = [
            DecoderLayer(loader, f"model.layers.{i}.", shape=shape, ops=ops) for i in range(config.num_layers)
        ]
        self._norm = loader.replicated("model.norm.weight", (config.hidden_size,))
        if config.tie_word_embeddings:
            start, stop = shard(config.vocab_size, loader.tp.rank, loader.tp.size)
            head = self._embedding[start:stop]
        else:
            head = loader.rows([("lm_head.weight", config.vocab_size)], config.hidden_size)
        self._lm_head = ops.prepare_weight(head)
        self._cos_sin = cos_sin_table(
            config.rope,
            head_dim=config.head_dim,
            max_position=config.max_position_embeddings,
            device=loader.device,
        )
        self.weight_bytes = loader.num_bytes + self._cos_sin.nbytes + (0 if fuser is None else fuser.weight_bytes)
        self._fuser = fuser
        self.dtype = loader.dtype
        self.device = loader.device
        self.ops = ops
        self._tp = loader.tp

    @classmethod
    def load(
        cls,
        model_path: Path,
        *,
        head_path: Path | None,
        dtype: torch.dtype,
        ops: Ops,
        device: torch.device,
        tp: TpGroup,
    ) -> Self:
        """Raises ModelLoadError for files that do not make the model, ConfigError where its heads do not divide."""
        config = load_model_config(model_path)
        validate_tp(config, tp.size)
        fuser = None
        if head_path is not None and tp.rank == 0:
            fuser = load_fuser(head_path, config, dtype=dtype, ops=ops, device=device)
        with closing(open_weights(model_path)) as source:
            loader = WeightLoader(source, dtype=dtype, device=device, tp=tp)
            return cls(config, loader, fuser=fuser, ops=ops)

    @property
    def feature_size(self) -> int:
        """Hd, 0 without a head and on ranks other than 0."""
        return 0 if self._fuser is None else self._fuser.size

    @property
    def feature_id(self) -> str:
        """Equal where features are; empty without a head and on ranks other than 0."""
        return "" if self._fuser is None else self._fuser.feature_id

    @property
    def cache_bytes_per_token(self) -> int:
        """Of this rank's pool, KV and feature."""
        values = 2 * self.config.num_layers * self._kv_width + self.feature_size
        return values * self.dtype.itemsize

    def make_cache(self, num_pages: int, page_size: int) -> TargetCache:
        """A pool of num_pages pages, zeroed."""
        num_slots = num_pages * page_size
        heads = self.config.num_kv_heads // self._tp.size
        kv = self._zeros(2, self.config.num_layers, num_slots, heads, self.config.head_dim)
        features = self._zeros(num_slots, self.feature_size) if self._fuser is not None else None
        return TargetCache(tuple(kv[0]), tuple(kv[1]), features, num_pages, page_size)

    @torch.inference_mode()
    def step(self, plan: StepPlan, cache: TargetCache) -> StepOutput:
        """Moves, then one forward of all rows. MUTATES the cache: the moved slots, then the rows' slots.

        Every rank calls it with the same plan. The output tensors are inference tensors.
        """
        if len(plan.move_src):
            self.ops.move_rows(cache.pools, self._upload(plan.move_src), self._upload(plan.move_dst))
        if plan.num_rows == 0:
            return StepOutput(self._no_logits(), None if self._fuser is None else self._zeros(0, self.feature_size))
        slots = self._upload(plan.slots)
        rows = RowContext(
            cos_sin=self._cos_sin.index_select(0, self._upload(plan.positions)),
            slots=slots,
            attention=self.ops.plan_attention(plan.attention),
        )
        residual = self.ops.embed(self._upload(plan.tokens), self._embedding)
        aux = None if self._fuser is None else self._fuser.start(residual)
        added = self._run_layers(residual, rows, cache=cache, aux=aux)
        features = None
        if self._fuser is not None and aux is not None:
            features = self._fuser.fuse(aux)
            assert cache.features is not None
            cache.features.index_copy_(0, slots, features)
        return StepOutput(self._logits(residual, added, plan.logit_rows), features)

    def _run_layers(self, residual: Tensor, rows: RowContext, *, cache: TargetCache, aux: Tensor | None) -> Tensor:
        """MUTATES residual and aux. Returns what the last layer adds to the residual."""
        ops, eps = self.ops, self.config.rms_norm_eps
        added: Tensor | None = None
        for i, layer in enumerate(self._layers):
            if added is None:
                x = ops.rms_norm(residual, layer.input_norm, eps)
            else:
                x = ops.add_rms_norm(added, residual, layer.input_norm, eps)
            if self._fuser is not None and aux is not None:
                self._fuser.capture(aux, i, residual)
            x = layer.attention.forward(x, rows, cache.k[i], cache.v[i])
            x = ops.add_rms_norm(x, residual, layer.post_norm, eps)
            added = layer.mlp.forward(x)
        assert added is not None
        if self._fuser is not None and aux is not None and self._fuser.takes(len(self._layers)):
            self._fuser.capture(aux, len(self._layers), residual + added)
        return added

    def _logits(self, residual: Tensor, added: Tensor, logit_rows: np.ndarray) -> Tensor | None:
        if len(logit_rows) == 0:
            return self._no_logits()
        wanted = self._upload(logit_rows)
        last, added = residual.index_select(0, wanted), added.index_select(0, wanted)
        normed = self.ops.add_rms_norm(added, last, self._norm, self.config.rms_norm_eps)
        return self._tp.gather_last_dim(self.ops.logits(normed, self._lm_head), self.config.vocab_size)

    def _no_logits(self) -> Tensor | None:
        return torch.zeros(0, self.config.vocab_size, device=self.device) if self._tp.rank == 0 else None

    @property
    def _kv_width(self) -> int:
        return self.config.num_kv_heads // self._tp.size * self.config.head_dim

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def _upload(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device, torch.int64)
