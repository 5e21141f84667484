"""What the end-to-end tests share: transformers as the oracle, a client's turn, and a wait."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import grpc
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from client.client import PacelineClient
from client.completion import Completion
from client.launcher import Fleet
from client.request import GenerateOptions, Message, Sampling, Speculation
from engine.weights import open_weights
from paceline.types import TreeShape
from paceline.v1 import draft_pb2, draft_pb2_grpc, target_pb2, target_pb2_grpc

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models/smollm2-135m"
CHAIN = TreeShape(5, 1, 6)
TREE = TreeShape(5, 4, 16)
WAIT_S = 120.0
PATIENT = ("--speculative-tree-deadline-ms", "10000")  # no round is late, however busy the machine


class Oracle:
    """transformers' own forward of the default model's dequantised weights, in fp32."""

    def __init__(self) -> None:
        settings = json.loads((MODEL / "config.json").read_text())
        self.model = LlamaForCausalLM(LlamaConfig(**settings)).eval()
        with closing(open_weights(MODEL)) as source:
            state = {name: source.get(name).float() for name in source.names()}
        state.setdefault("lm_head.weight", state["model.embed_tokens.weight"])
        self.model.load_state_dict(state, strict=True)

    @torch.inference_mode()
    def greedy(self, prompt_ids: Sequence[int], max_tokens: int) -> tuple[int, ...]:
        """transformers' generate: the new tokens, the end token included."""
        ids = torch.tensor([list(prompt_ids)])
        out = self.model.generate(ids, max_new_tokens=max_tokens, do_sample=False, attention_mask=torch.ones_like(ids))
        return tuple(out[0, len(prompt_ids) :].tolist())

    @torch.inference_mode()
    def logits_after(self, ids: Sequence[int]) -> torch.Tensor:
        """[vocab] fp32, of the token that follows."""
        return self.model(torch.tensor([list(ids)])).logits[0, -1]


def ask(client: PacelineClient, prompt: str, sampling: Sampling, speculation: Speculation = None) -> Completion:
    """One chat turn, to its end."""
    options = GenerateOptions(speculation=speculation)
    with client.generate([Message("user", prompt)], sampling=sampling, options=options) as generation:
        return generation.result()


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.05)


def free_pages(fleet: Fleet) -> list[int]:
    """Of every target, then of every draft."""
    pages = []
    with ExitStack() as stack:
        for target in fleet.targets:
            channel = stack.enter_context(grpc.insecure_channel(target.address))
            info = target_pb2_grpc.TargetServiceStub(channel).GetInfo(target_pb2.TargetServiceGetInfoRequest())
            pages.append(info.load.free_pages)
        for draft in fleet.drafts:
            channel = stack.enter_context(grpc.insecure_channel(draft.address))
            loads = draft_pb2_grpc.DraftServiceStub(channel).WatchLoad(draft_pb2.WatchLoadRequest())
            pages.append(next(loads).free_pages)
            loads.cancel()
    return pages
