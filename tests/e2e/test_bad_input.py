"""Bad input: the right status and a message that names the value; no service dies, no other request notices."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from client.client import PacelineClient
from client.launcher import Fleet
from client.request import Sampling
from paceline.v1 import common_pb2, draft_pb2, router_pb2, router_pb2_grpc, target_pb2
from tests.support.services import MODEL, ROOT, WAIT_S, ask

INVALID = grpc.StatusCode.INVALID_ARGUMENT
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED


@pytest.fixture
def fleet(bf16_fleet: Fleet) -> Fleet:
    return bf16_fleet


@pytest.fixture
def stub(fleet: Fleet) -> Iterator[router_pb2_grpc.RouterServiceStub]:
    with grpc.insecure_channel(fleet.router_address) as channel:
        yield router_pb2_grpc.RouterServiceStub(channel)


@pytest.fixture(autouse=True)
def the_fleet_goes_on(fleet: Fleet, prompts: list[str]) -> Iterator[None]:
    yield
    assert all(process.running for process in fleet.processes)
    with PacelineClient(fleet.router_address, request_timeout_s=WAIT_S) as client:
        assert len(ask(client, prompts[0], Sampling(max_tokens=3)).token_ids) == 3


def request(text: str = "Hello", **sampling: object) -> router_pb2.GenerateRequest:
    return router_pb2.GenerateRequest(text=text, sampling_params=common_pb2.SamplingParams(**sampling))  # type: ignore[arg-type]


def with_shape(steps: int, topk: int, nodes: int) -> router_pb2.GenerateRequest:
    bad = request()
    bad.speculation.shape.CopyFrom(common_pb2.TreeShape(num_steps=steps, eagle_topk=topk, num_draft_tokens=nodes))
    return bad


BAD_REQUESTS = {
    "no input": (router_pb2.GenerateRequest(), INVALID, "input"),
    "empty text": (request(""), INVALID, "empty"),
    "no ids": (router_pb2.GenerateRequest(token_ids=router_pb2.TokenIds()), INVALID, "empty"),
    "id outside": (router_pb2.GenerateRequest(token_ids=router_pb2.TokenIds(ids=[49152])), INVALID, "49152"),
    "too long": (router_pb2.GenerateRequest(token_ids=router_pb2.TokenIds(ids=[5] * 9000)), INVALID, "9000"),
    "temperature": (request(temperature=-1.0), INVALID, "temperature is -1"),
    "nan": (request(temperature=float("nan")), INVALID, "temperature is nan"),
    "infinite": (request(temperature=float("inf")), INVALID, "temperature is inf"),
    "top_p 0": (request(top_p=0.0), INVALID, "top_p is 0"),
    "top_p 2": (request(top_p=2.0), INVALID, "top_p is 2"),
    "top_p nan": (request(top_p=float("nan")), INVALID, "top_p is nan"),
    "min_p": (request(min_p=1.5), INVALID, "min_p is 1.5"),
    "max_tokens": (request(max_tokens=0), INVALID, "max_tokens is 0"),
    "65 nodes": (with_shape(8, 8, 65), INVALID, "num_draft_tokens is 65"),
    "no steps": (with_shape(0, 1, 2), INVALID, "num_steps is 0"),
    "stop": (request(stop=["x"]), UNIMPLEMENTED, "stop"),
    "n": (request(n=2), UNIMPLEMENTED, "n is not"),
    "bias": (request(logit_bias={1: 1.0}), UNIMPLEMENTED, "logit_bias"),
    "penalty": (request(frequency_penalty=1.0), UNIMPLEMENTED, "frequency_penalty"),
    "logprobs": (request(logprobs=1), UNIMPLEMENTED, "logprobs"),
    "grammar": (request(grammar="x"), UNIMPLEMENTED, "grammar"),
    "lora": (router_pb2.GenerateRequest(text="x", lora_id="l"), UNIMPLEMENTED, "lora_id"),
}


def test_each_bad_request_gets_its_status_and_a_message_that_names_the_value(
    stub: router_pb2_grpc.RouterServiceStub,
) -> None:
    for name, (bad, code, words) in BAD_REQUESTS.items():
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.Generate(bad, timeout=WAIT_S))
        assert caught.value.code() == code, (name, caught.value)
        assert words in caught.value.details(), (name, caught.value.details())


def raw_call(address: str, method: str, payload: bytes) -> grpc.StatusCode:
    """What a stream of these bytes ends with."""
    with grpc.insecure_channel(address) as channel:
        call = channel.stream_stream(method)(iter([payload]), timeout=WAIT_S)
        try:
            list(call)
        except grpc.RpcError as error:
            code = error.code()
            assert isinstance(code, grpc.StatusCode)
            return code
    return grpc.StatusCode.OK


@pytest.mark.parametrize("seed", range(4))
def test_random_bytes_on_a_stream_end_that_stream_alone(fleet: Fleet, seed: int) -> None:
    garbage = random.Random(seed).randbytes(3000 + seed)
    streams = [
        (fleet.drafts[0].address, "/paceline.v1.DraftService/Speculate"),
        (fleet.drafts[0].address, "/paceline.v1.DraftService/Sync"),
        (fleet.targets[0].address, "/paceline.v1.TargetService/Serve"),
        (fleet.router_address, "/paceline.v1.RouterService/Generate"),
    ]
    for address, method in streams:
        assert raw_call(address, method, garbage) != grpc.StatusCode.OK, method


def test_a_stream_that_starts_without_hello_is_refused(fleet: Fleet) -> None:
    submit = target_pb2.ServeRequest(cancel=target_pb2.Cancel(requests=[1])).SerializeToString()
    assert raw_call(fleet.targets[0].address, "/paceline.v1.TargetService/Serve", submit) == INVALID
    release = draft_pb2.SpeculateRequest(release=[1]).SerializeToString()
    assert raw_call(fleet.drafts[0].address, "/paceline.v1.DraftService/Speculate", release) == INVALID


def test_a_target_of_another_head_is_refused_by_the_draft(fleet: Fleet) -> None:
    hello = draft_pb2.DraftHello(incarnation=1, target="test", head_fingerprint="other", feature_id="other")
    payload = draft_pb2.SpeculateRequest(hello=hello).SerializeToString()
    address = fleet.drafts[0].address
    assert raw_call(address, "/paceline.v1.DraftService/Speculate", payload) == grpc.StatusCode.FAILED_PRECONDITION


BAD_STARTS = {
    "no such model": ("target_service", ["--model-path", "/no/such/model"], 3, "/no/such/model"),
    "no such head": ("draft_service", ["--speculative-draft-model-path", "/no/head"], 3, "/no/head"),
    "unknown flag": ("target_service", ["--no-such-flag"], 2, "--no-such-flag"),
    "bad value": ("target_service", ["--page-size", "0"], 2, "page-size"),
    "heads do not divide": ("target_service", ["--tp-size", "2"], 2, "9"),
    "unknown policy": ("router", ["--targets", "127.0.0.1:1", "--speculative-policy", "perhaps"], 2, "perhaps"),
}


@pytest.mark.parametrize("name", BAD_STARTS)
def test_a_service_that_cannot_start_says_why_and_exits(name: str) -> None:
    module, flags, code, words = BAD_STARTS[name]
    result = subprocess.run(
        [sys.executable, "-m", module, "--port", "0", *flags], capture_output=True, text=True, cwd=ROOT, timeout=WAIT_S
    )
    assert result.returncode == code, result.stderr
    assert words in result.stderr.strip().splitlines()[-1], result.stderr
    assert "Traceback" not in result.stderr


def test_a_truncated_head_is_refused(tmp_path: Path) -> None:
    head = ROOT / "models/smollm2-135m-eagle3"
    (tmp_path / "config.json").write_bytes((head / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes((head / "model.safetensors").read_bytes()[:1_000_000])
    flags = ["--port", "0", "--model-path", str(MODEL), "--speculative-draft-model-path", str(tmp_path)]
    result = subprocess.run(
        [sys.executable, "-m", "draft_service", *flags], capture_output=True, text=True, cwd=ROOT, timeout=WAIT_S
    )
    assert result.returncode == 3
    assert "model.safetensors" in result.stderr.strip().splitlines()[-1]
