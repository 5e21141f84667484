"""A tiny random target with a head, and its decode loop driven by hand: no threads, no network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from prometheus_client import CollectorRegistry
from safetensors.torch import load_file, save_file

from paceline.mailbox import Mailbox
from paceline.types import FinishReason, Rung, SamplingParams, SpeculationDecision, TreeShape
from target_service.config import TargetConfig
from target_service.draft_orders import DraftOrders
from target_service.emission import Emission, Finished, Returned
from target_service.engine_loop import IDLE_WAIT_S, EngineLoop
from target_service.events import Event, StreamOpened, Submitted
from target_service.loading import LoadedRank, load_rank
from target_service.loop_parts import LoopParts, Outlets
from target_service.rehearsal_time import RehearsalTime
from target_service.request import Request, RequestKey, cost_of
from target_service.service import make_parts
from target_service.token_columns import TokenColumns
from tests.support.tiny_draft import CONTEXT, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, MLP, VOCAB, save_tiny_draft

NUM_LAYERS = 6
PAGE_SIZE = 4
EOS = 2
STREAM = 1
DRAFT = "draft:1"


@dataclass(frozen=True, slots=True)
class TinyTarget:
    """Where a tiny random model and its head lie."""

    model_path: Path
    head_path: Path

    def config(self, **changes: object) -> TargetConfig:
        settings: dict[str, object] = {
            "port": 0,
            "model_path": str(self.model_path),
            "speculative_draft_model_path": str(self.head_path),
            "dtype": "float32",
            "num_threads": 1,
            "page_size": PAGE_SIZE,
            "chunked_prefill_size": 16,
            "max_running_requests": 8,
            "max_total_tokens": 2048,
            "drain_timeout_s": 20.0,
        }
        return TargetConfig(**{**settings, **changes})


def save_tiny_target(root: Path) -> TinyTarget:
    """Writes the tiny draft's model with all its layers, and the head."""
    tiny = save_tiny_draft(root)
    generator = torch.Generator().manual_seed(5)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.4

    weights = load_file(tiny.model_path / "model.safetensors")
    for layer in range(NUM_LAYERS):
        parts = {
            "input_layernorm": random(HIDDEN) + 1,
            "post_attention_layernorm": random(HIDDEN) + 1,
            "self_attn.q_proj": random(HEADS * HEAD_DIM, HIDDEN),
            "self_attn.k_proj": random(KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.v_proj": random(KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.o_proj": random(HIDDEN, HEADS * HEAD_DIM),
            "mlp.gate_proj": random(MLP, HIDDEN),
            "mlp.up_proj": random(MLP, HIDDEN),
            "mlp.down_proj": random(HIDDEN, MLP),
        }
        weights |= {f"model.layers.{layer}.{name}.weight": tensor for name, tensor in parts.items()}
    weights["model.norm.weight"] = random(HIDDEN) + 1
    save_file(weights, tiny.model_path / "model.safetensors")
    return TinyTarget(tiny.model_path, tiny.head_path)


@dataclass(slots=True)
class Output:
    """What a router got of one request."""

    tokens: list[int] = field(default_factory=list)
    finish: Finished | None = None
    returned: Returned | None = None

    @property
    def reason(self) -> FinishReason | None:
        return None if self.finish is None else self.finish.reason


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, time_s: float) -> None:
        self.now_s += time_s


class DrivenLoop:
    """A decode loop whose turns a test takes. ``outputs`` is what the routers' streams got."""

    def __init__(
        self,
        config: TargetConfig,
        rank: LoadedRank,
        *,
        context_length: int = CONTEXT,
        rehearse: Callable[[], object] | None = None,
    ) -> None:
        """rehearse: within steps that are waited for."""
        self.config = config
        self.context_length = context_length
        self.mailbox = Mailbox[Event]()
        self.clock = Clock()
        self.emissions: list[Emission] = []
        self.orders: list[dict[str, DraftOrders]] = []
        self.outputs: dict[RequestKey, Output] = {}
        self.registry = CollectorRegistry()
        self.parts: LoopParts = make_parts(config, rank, context_length=context_length, registry=self.registry)
        outlets = Outlets(self._take_orders, self._take)
        rehearsals = None
        if rehearse is not None:
            rehearsals = RehearsalTime(rehearse, self.parts.times, clock=self.clock, pause=self.clock.sleep)
        self.loop = EngineLoop(self.parts, self.mailbox, outlets, rehearsals=rehearsals, clock=self.clock)
        self.put(StreamOpened(STREAM))

    def put(self, event: Event) -> None:
        self.mailbox.put(event)

    def submit(
        self,
        number: int,
        prompt: Sequence[int],
        *,
        params: SamplingParams | None = None,
        decision: SpeculationDecision | None = None,
        emitted: Sequence[int] = (),
        stream: int = STREAM,
    ) -> Output:
        key = RequestKey(stream, number)
        params = params or SamplingParams(max_tokens=8, ignore_eos=True)
        request = Request(
            key=key,
            prompt_ids=np.array(prompt, np.int32),
            emitted_ids=np.array(emitted, np.int32),
            params=params,
            decision=decision or SpeculationDecision(),
            cost=cost_of(
                prompt_len=len(prompt),
                max_tokens=params.max_tokens,
                context_length=self.context_length,
                page_size=self.config.page_size,
            ),
        )
        output = self.outputs[key] = Output()
        self.put(Submitted([request]))
        return output

    def turn(self) -> float:
        return self.loop.turn(0.0)

    def run(self, max_turns: int = 2000) -> None:
        """Turns until no request runs, and all was told."""
        for _ in range(max_turns):
            self.turn()
            if not self.parts.requests.sequences:
                self.settle()
                return
        raise AssertionError("requests still run")

    def settle(self) -> None:
        """Turns until nothing is left to tell. No request may run."""
        while self.turn() < IDLE_WAIT_S:
            pass

    def generate(
        self, prompt: Sequence[int], params: SamplingParams | None = None, decision: SpeculationDecision | None = None
    ) -> list[int]:
        """One request alone, to its end."""
        output = self.submit(
            max((key.request for key in self.outputs), default=0) + 1, prompt, params=params, decision=decision
        )
        self.run()
        return output.tokens

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    def check_all_pages_free(self) -> None:
        requests = self.parts.requests
        assert not requests.sequences
        assert requests.num_free_pages == requests.num_pages
        requests._allocator.check()

    def _take_orders(self, orders: dict[str, DraftOrders]) -> bool:
        for part in orders.values():
            part.own()
        self.orders.append(orders)
        return True

    def _take(self, emission: Emission) -> None:
        self.emissions.append(emission)
        for stream, batch in emission.streams.items():
            for columns in batch.deltas:
                self._take_tokens(stream, columns)
            for finished in batch.finishes:
                self.outputs[RequestKey(stream, finished.request)].finish = finished
            for returned in batch.returns:
                self.outputs[RequestKey(stream, returned.request)].returned = returned

    def _take_tokens(self, stream: int, columns: TokenColumns) -> None:
        stops = np.cumsum(columns.num_tokens)
        for number, offset, part in zip(
            columns.request.tolist(), columns.offset.tolist(), np.split(columns.tokens, stops[:-1]), strict=True
        ):
            output = self.outputs[RequestKey(stream, number)]
            assert offset == len(output.tokens), "a delta does not join up"
            output.tokens += part.tolist()


def always(shape: TreeShape, draft: str = DRAFT) -> SpeculationDecision:
    return SpeculationDecision(draft, (Rung(0, shape),), "policy:always")


def off(draft: str = DRAFT) -> SpeculationDecision:
    """Plain decoding that keeps its draft: rows are flushed."""
    return SpeculationDecision(draft, (), "policy:off")


def load_tiny_rank(tiny: TinyTarget, **changes: object) -> LoadedRank:
    return load_rank(tiny.config(**changes), 0, "")


def random_prompt(num_tokens: int, seed: int = 0) -> list[int]:
    rng = np.random.default_rng(seed)
    return rng.integers(3, VOCAB, num_tokens).tolist()
