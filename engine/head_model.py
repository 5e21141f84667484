"""HeadModel: the EAGLE-3 head's one layer, from (token, feature) rows to draft logits."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from engine.config import HeadConfig, ModelConfig, load_head_config, load_model_config
from engine.features import feature_id
from engine.head_vocabulary import HeadVocabulary, load_vocabulary
from engine.head_weights import LAYER, open_head_weights
from engine.layers import Attention, LayerShape, Mlp
from engine.pool import HeadCache
from engine.rope import cos_sin_table
from engine.tp import TpGroup
from engine.weights import fingerprint_of, open_weights
from engine.weights.loader import WeightLoader
from kernels.head import GreedyTrees, HeadRows, HeadWeights
from kernels.ops import AttentionLimits, AttentionPlan, AttentionPlanner, Ops


class HeadModel:
    """Row j pairs the feature of target position j with the token at j + 1, at RoPE position j.

    feature_id: which features it takes; fingerprint: which weights it has.
    """

    def __init__(
        self, config: HeadConfig, target: ModelConfig, *, loader: WeightLoader, vocabulary: HeadVocabulary, ops: Ops
    ) -> None:
        source = loader.source
        shape = LayerShape(
            input_size=2 * config.hidden_size,
            hidden_size=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            intermediate_size=config.intermediate_size,
            eps=config.rms_norm_eps,
            qkv_bias=source.has(f"{LAYER}self_attn.q_proj.bias"),
            output_bias=source.has(f"{LAYER}self_attn.o_proj.bias"),
            qk_norm=source.has(f"{LAYER}self_attn.q_norm.weight"),
            is_draft=True,
        )
        hidden = (config.hidden_size,)
        attention = Attention(loader, f"{LAYER}self_attn.", shape=shape, ops=ops)
        mlp = Mlp(loader, f"{LAYER}mlp.", shape=shape, ops=ops)
        weights = HeadWeights(
            embedding=vocabulary.embedding,
            cos_sin=cos_sin_table(
                config.rope,
                head_dim=config.head_dim,
                max_position=target.max_position_embeddings,
                device=loader.device,
            ),
            token_norm=loader.replicated(f"{LAYER}input_layernorm.weight", hidden),
            feature_norm=loader.replicated(f"{LAYER}hidden_norm.weight", hidden),
            attention=attention.weights,
            post_norm=loader.replicated(f"{LAYER}post_attention_layernorm.weight", hidden),
            gate_up=mlp.gate_up,
            down=mlp.down,
            norm=loader.replicated("norm.weight", hidden),
            lm_head=ops.prepare_draft_weight(vocabulary.lm_head),
            target_ids=vocabulary.target_ids,
            eps=config.rms_norm_eps,
            norm_before_residual=config.norm_before_residual,
            norm_output=config.norm_output,
        )
        self.config = config
        self.fingerprint = fingerprint_of(source)
        self.feature_id = feature_id(source, config.aux_layers(target.num_layers))
        rounded_bytes = sum(ops.rounded_bytes(matrix) for matrix in weights.matrices)
        self.weight_bytes = loader.num_bytes + weights.cos_sin.nbytes + rounded_bytes
        self._head = ops.prepare_head(weights)
        self._target_ids = vocabulary.target_ids
        self.dtype = loader.dtype
        self.device = loader.device
        self.ops = ops

    @classmethod
    def load(cls, head_path: Path, model_path: Path, *, dtype: torch.dtype, ops: Ops, device: torch.device) -> Self:
        """model_path: the target, whose embedding (and output matrix, where the head has none) the head shares.

        Raises ModelLoadError for a damaged head, one of another target, or one without d2t where it needs it.
        """
        config, target = load_head_config(head_path), load_model_config(model_path)
        config.check_target(target, str(head_path))
        tp = TpGroup()
        with (
            closing(open_head_weights(head_path, config, device=device)) as head,
            closing(open_weights(model_path, device=device)) as whole,
        ):
            loader = WeightLoader(head, dtype=dtype, device=device, tp=tp)
            target_loader = WeightLoader(whole, dtype=dtype, device=device, tp=tp)
            vocabulary = load_vocabulary(config, target, loader=loader, target_loader=target_loader)
            model = cls(config, target, loader=loader, vocabulary=vocabulary, ops=ops)
        model.weight_bytes += target_loader.num_bytes
        return model

    @property
    def cache_bytes_per_token(self) -> int:
        return 2 * self.config.num_kv_heads * self.config.head_dim * self.dtype.itemsize

    def make_cache(self, num_pages: int, page_size: int) -> HeadCache:
        """A pool of num_pages pages and a spare one, zeroed."""
        shape = ((num_pages + 1) * page_size, self.config.num_kv_heads, self.config.head_dim)
        k, v = (torch.zeros(shape, dtype=self.dtype, device=self.device) for _ in range(2))
        return HeadCache(k, v, num_pages, page_size)

    def attention_planner(self, cache: HeadCache, *, max_rows: int, max_requests: int) -> AttentionPlanner:
        """For steps on this cache that a graph may hold."""
        config = self.config
        limits = AttentionLimits(
            max_rows=max_rows,
            max_requests=max_requests,
            max_pages=cache.num_pages,
            page_size=cache.page_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
        )
        return self.ops.attention_planner(limits)

    @torch.inference_mode()
    def forward(
        self,
        tokens: Tensor,
        hidden: Tensor,
        positions: Tensor,
        slots: Tensor,
        attention: AttentionPlan,
        cache: HeadCache,
    ) -> Tensor:
        """One forward of all rows. MUTATES the cache at their slots.

        tokens, positions, slots: [rows] int64; hidden: [rows, H], features of the target or the result of the
        forward before. Returns [rows, H]: what ``logits`` and the next forward take, that is the hidden state
        before the final norm, or after it where the head has norm_output.
        """
        rows = HeadRows(tokens, hidden.to(self.dtype), positions, slots, attention)
        return self._head.forward(rows, cache.k, cache.v)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: [rows, H] from ``forward`` -> [rows, draft vocabulary] fp32."""
        return self._head.logits(hidden)

    @torch.inference_mode()
    def best(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k likeliest next tokens of each row of hidden, [rows, H] from ``forward``.

        [rows, k]: log-probabilities fp32, descending, and the target's ids int64. Ties go to the lower draft id.
        """
        return self._head.best(hidden, k)

    @torch.inference_mode()
    def grow(self, trees: GreedyTrees, cache: HeadCache) -> np.ndarray | None:
        """``Head.grow``. MUTATES the cache."""
        return self._head.grow(trees, cache.k, cache.v)

    @property
    def all_target_ids(self) -> Tensor:
        """[draft vocabulary] int64: the target's id of each draft id."""
        return self._target_ids

    @torch.inference_mode()
    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """int64, any shape -> the target's ids, the same shape."""
        return self._target_ids.index_select(0, draft_ids.reshape(-1)).view(draft_ids.shape)
