"""Speculation off for a while and on again leaves no hole in the draft's KV."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import grpc
import numpy as np
import pytest
from tokenizers import Tokenizer

from client.launcher import Fleet
from paceline.round_codec import decode_verify
from paceline.tree import DraftTree
from paceline.types import TreeShape
from paceline.v1 import common_pb2, draft_pb2, draft_pb2_grpc, target_pb2, target_pb2_grpc
from tests.support.in_process import first_tree
from tests.support.services import MODEL, TREE, WAIT_S

OFF_TOKENS = 32
TOTAL_TOKENS = 72


@dataclass
class OneRequest:
    """A router on the wire with one request, whose speculation it turns off and on."""

    stub: target_pb2_grpc.TargetServiceStub
    draft: str
    prompt_ids: list[int]
    tokens: list[int] = field(default_factory=list)
    finished: bool = False

    def __post_init__(self) -> None:
        self._up: queue.SimpleQueue[target_pb2.ServeRequest | None] = queue.SimpleQueue()
        self._up.put(target_pb2.ServeRequest(hello=target_pb2.ServeHello(router="test", incarnation=1)))
        self._down = self.stub.Serve(iter(self._up.get, None), timeout=WAIT_S)

    def submit(self, shape: TreeShape | None) -> None:
        submission = target_pb2.Submission(
            request=1,
            request_id="off-and-on",
            prompt_ids=self.prompt_ids,
            sampling_params=common_pb2.SamplingParams(max_tokens=TOTAL_TOKENS, ignore_eos=True, seed=1),
            decision=self._decision(shape),
        )
        self._up.put(target_pb2.ServeRequest(submit=target_pb2.Submit(submissions=[submission])))

    def decide(self, shape: TreeShape | None) -> None:
        update = target_pb2.UpdateSpeculation(requests=[1], decisions=[self._decision(shape)])
        self._up.put(target_pb2.ServeRequest(update_speculation=update))

    def read_until(self, num_tokens: int) -> None:
        while len(self.tokens) < num_tokens and not self.finished:
            response = next(self._down)
            assert not response.returns, response
            self.tokens.extend(response.deltas.tokens)
            self.finished = bool(response.finishes)

    def close(self) -> None:
        self._up.put(None)
        self._down.cancel()

    def _decision(self, shape: TreeShape | None) -> target_pb2.SpeculationDecision:
        if shape is None:
            return target_pb2.SpeculationDecision(draft=self.draft, reason="test: off")
        numbers = common_pb2.TreeShape(
            num_steps=shape.num_steps, eagle_topk=shape.eagle_topk, num_draft_tokens=shape.num_draft_tokens
        )
        rung = target_pb2.SpeculationRung(shape=numbers)
        return target_pb2.SpeculationDecision(draft=self.draft, ladder=[rung], reason="test: on")


@pytest.fixture
def trees(fp32_fleet: Fleet) -> Iterator[dict[int, DraftTree]]:
    """Every tree that the draft proposes from now on, by the length that it grows from."""
    seen: dict[int, DraftTree] = {}
    with grpc.insecure_channel(fp32_fleet.drafts[0].address) as channel:
        rounds = draft_pb2_grpc.DraftServiceStub(channel).WatchRounds(draft_pb2.DraftServiceWatchRoundsRequest())
        rounds.initial_metadata()

        def read() -> None:
            try:
                for message in rounds:
                    columns = decode_verify(message.round.verify_input)
                    seen.update(zip(columns.base_committed_len.tolist(), columns.trees(), strict=True))
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.CANCELLED:
                    raise

        reader = threading.Thread(target=read)
        reader.start()
        yield seen
        rounds.cancel()
        reader.join()


def test_after_off_and_on_the_tree_is_that_of_a_draft_that_was_never_off(
    fp32_fleet: Fleet, trees: dict[int, DraftTree], prompts: list[str]
) -> None:
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    prompt_ids = tokenizer.encode(prompts[3]).ids
    with grpc.insecure_channel(fp32_fleet.targets[0].address) as channel:
        stub = target_pb2_grpc.TargetServiceStub(channel)
        plain = OneRequest(stub, "", prompt_ids)
        plain.submit(None)
        plain.read_until(TOTAL_TOKENS)
        plain.close()

        request = OneRequest(stub, fp32_fleet.drafts[0].address, prompt_ids)
        request.submit(TREE)
        request.read_until(8)
        request.decide(None)
        off_at = len(request.tokens)
        request.read_until(off_at + OFF_TOKENS)
        before_on = len(prompt_ids) + len(request.tokens)
        request.decide(TREE)
        request.read_until(TOTAL_TOKENS)
        request.close()

    assert request.tokens == plain.tokens
    grown_after = sorted(length for length in trees if length >= before_on - 1)
    assert grown_after, f"no tree after speculation came on again at {before_on}: {sorted(trees)}"
    first_len = grown_after[0]
    gap = [length for length in trees if before_on - OFF_TOKENS + 8 <= length < before_on - 1]
    assert not gap, f"trees were proposed while speculation was off: {gap}"
    ids = np.array([*prompt_ids, *request.tokens], np.int32)
    expected = first_tree(ids[: first_len + 1], TREE)
    tree = trees[first_len]
    assert tree.tokens.tolist() == expected.tokens.tolist()
    assert tree.parents.tolist() == expected.parents.tolist()
