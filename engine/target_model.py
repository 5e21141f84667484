"""TargetModel: one ragged step of prefill chunks and trees through the target, features captured on the way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from engine.config import ModelConfig, load_model_config
from engine.features import FeatureFuser, load_fuser
from engine.graph_capture import Capture, CudaCapture, logged_capture
from engine.layers import DecoderLayer, LayerShape, RowContext
from engine.plan import StepPlan
from engine.pool import TargetCache
from engine.rope import cos_sin_table
from engine.step_graphs import StepGraphs, StepOutput, num_input_bytes
from engine.step_inputs import StepInputs, StepSize, StepTensors, host_tensors
from engine.tp import TpGroup, shard, validate_tp
from engine.weights import open_weights
from engine.weights.loader import WeightLoader
from kernels.ops import AttentionLimits, AttentionPlan, Ops


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
        self._inputs: StepInputs | None = None  # of eager steps on a GPU
        self._graphs: StepGraphs | None = None

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
        with closing(open_weights(model_path, device=device)) as source:
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
        """A pool of num_pages pages, zeroed, and one spare page."""
        num_slots = (num_pages + 1) * page_size
        heads = self.config.num_kv_heads // self._tp.size
        kv = self._zeros(2, self.config.num_layers, num_slots, heads, self.config.head_dim)
        features = self._zeros(num_slots, self.feature_size) if self._fuser is not None else None
        return TargetCache(tuple(kv[0]), tuple(kv[1]), features, num_pages, page_size)

    @torch.inference_mode()
    def capture(self, cache: TargetCache, max_rows: int, *, capture: Capture | None = None) -> None:
        """Captures graphs of steps of up to max_rows rows on this cache; ``step`` replays them from then on.

        Every rank does it alike, before the first request, for the graphs hold the ranks' reductions. Logs what it
        took. capture: how, for tests; None makes CUDA graphs.
        """
        config, size = self.config, self._tp.size
        limits = AttentionLimits(
            max_rows=max_rows,
            max_requests=max_rows,
            max_pages=cache.num_pages,
            page_size=cache.page_size,
            num_heads=config.num_heads // size,
            num_kv_heads=config.num_kv_heads // size,
            head_dim=config.head_dim,
        )
        with logged_capture(f"CUDA graphs of steps of up to {max_rows} rows", self.device):
            self._graphs = StepGraphs(
                lambda tensors, attention: self.forward(tensors, attention, cache),
                cache,
                self.ops.attention_buffers(limits, num_ahead=num_input_bytes(max_rows)),
                capture=CudaCapture(self.device) if capture is None else capture,
            )

    def step(
        self,
        plan: StepPlan,
        cache: TargetCache,
        *,
        drawn: Tensor | None = None,
        on_launch: Callable[[], None] = lambda: None,
    ) -> StepOutput:
        """Moves, then one forward of all rows. MUTATES the cache: the moved slots, then the rows' slots.

        Every rank calls it with the same plan. On CUDA it only launches, on the current stream. The output tensors are
        inference tensors, those of a captured step valid until the next one. drawn: [trees] integers, what the roots
        of the step before drew; rank 0 gives them where the plan has tokens of these. on_launch: called when all that
        the forward reads is on its way.
        """
        if torch.is_inference_mode_enabled():  # entering it takes a cold host long
            return self._step(plan, cache, drawn, on_launch)
        with torch.inference_mode():
            return self._step(plan, cache, drawn, on_launch)

    def _step(
        self, plan: StepPlan, cache: TargetCache, drawn: Tensor | None, on_launch: Callable[[], None]
    ) -> StepOutput:
        num_drawn = plan.num_drawn
        known = self._tp.share_tokens(drawn, num_drawn, device=self.device) if num_drawn else None

        def ready(tokens: Tensor) -> None:
            if known is not None:
                self.ops.fill_drawn(tokens, known)
            on_launch()

        graphs = self._graphs_of(cache)
        size = None if graphs is None else graphs.size_for(plan)
        if graphs is not None and size is not None:
            return graphs.run(plan, size, ready=ready)
        tensors = self._tensors(plan, cache)
        ready(tensors.tokens)
        if plan.num_rows == 0:
            self._move(tensors, cache)
            return StepOutput(self._no_logits(), None if self._fuser is None else self._zeros(0, self.feature_size))
        return self.forward(tensors, self.ops.plan_attention(plan.attention), cache)

    @torch.inference_mode()
    def rehearse(self, plan: StepPlan, cache: TargetCache) -> None:
        """What a ``step`` that a graph holds does on the host, on this rank alone: every step copies its own tables
        over these, and what is launched clears the spare slot."""
        graphs = self._graphs_of(cache)
        size = None if graphs is None else graphs.size_for(plan)
        if graphs is not None and size is not None:
            graphs.rehearse(plan, size)

    @torch.inference_mode()
    def forward(self, step: StepTensors, attention: AttentionPlan, cache: TargetCache) -> StepOutput:
        """``step`` over tensors alone, of at least one row: what a graph holds."""
        self._move(step, cache)
        rows = RowContext(self.ops.embed(step.positions, self._cos_sin), step.slots, attention)
        residual = self.ops.embed(step.tokens, self._embedding)
        aux = None if self._fuser is None else self._fuser.start(residual)
        added = self._run_layers(residual, rows, cache=cache, aux=aux)
        features = None
        if self._fuser is not None and aux is not None:
            features = self._fuser.fuse(aux)
            assert cache.features is not None
            self.ops.scatter_rows(cache.features, step.slots, features)
        return StepOutput(self._logits(residual, added, step.logit_rows), features)

    def _graphs_of(self, cache: TargetCache) -> StepGraphs | None:
        return self._graphs if self._graphs is not None and self._graphs.cache is cache else None

    def _tensors(self, plan: StepPlan, cache: TargetCache) -> StepTensors:
        """Of an eager step: on a GPU in a buffer that grows to the largest one, which waits for the steps before."""
        if self.device.type == "cpu":
            return host_tensors(plan)
        size = StepSize.of(plan)
        if self._inputs is None or self._inputs.num_bytes < size.num_bytes:
            torch.cuda.current_stream(self.device).synchronize()  # the old one's copies are made
            self._inputs = StepInputs.alone(2 * size.num_bytes, spare_slot=cache.spare_slot, device=self.device)
        self._inputs.load(plan, size)
        return self._inputs.tensors(size)

    def _move(self, step: StepTensors, cache: TargetCache) -> None:
        if len(step.move_src):
            self.ops.move_rows(cache.pools, step.move_src, step.move_dst)

    def _run_layers(self, residual: Tensor, rows: RowContext, *, cache: TargetCache, aux: Tensor | None) -> Tensor:
        """MUTATES residual and aux. Returns what the last layer adds to the residual."""
        ops, eps = self.ops, self.config.rms_norm_eps
        added: Tensor | None = None
        for i, layer in enumerate(self._layers):
            parts = self._aux_parts(aux, i)
            if added is None:
                x = ops.rms_norm(residual, layer.input_norm, eps)
            else:
                x = ops.add_rms_norm(added, residual, layer.input_norm, eps, capture=parts.pop() if parts else None)
            for part in parts:
                part.copy_(residual)
            x = layer.attention.forward(x, rows, cache.k[i], cache.v[i])
            x = ops.add_rms_norm(x, residual, layer.post_norm, eps)
            added = layer.mlp.forward(x)
        assert added is not None
        for part in self._aux_parts(aux, len(self._layers)):
            torch.add(residual, added, out=part)
        return added

    def _aux_parts(self, aux: Tensor | None, layer: int) -> list[Tensor]:
        return [] if self._fuser is None or aux is None else self._fuser.parts(aux, layer)

    def _logits(self, residual: Tensor, added: Tensor, logit_rows: Tensor) -> Tensor | None:
        if len(logit_rows) == 0:
            return self._no_logits()
        last, added = self.ops.embed(logit_rows, residual), self.ops.embed(logit_rows, added)
        normed = self.ops.add_rms_norm(added, last, self._norm, self.config.rms_norm_eps)
        return self._tp.gather_last_dim(self.ops.logits(normed, self._lm_head), self.config.vocab_size)

    def _no_logits(self) -> Tensor | None:
        return torch.zeros(0, self.config.vocab_size, device=self.device) if self._tp.rank == 0 else None

    @property
    def _kv_width(self) -> int:
        return self.config.num_kv_heads // self._tp.size * self.config.head_dim

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self.dtype, device=self.device)
