"""``paceline inspect`` over real gRPC services that tell made-up rounds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass

import grpc
import pytest

from client.cli import main
from paceline.v1 import draft_pb2, draft_pb2_grpc, router_pb2, target_pb2, target_pb2_grpc, verify_pb2


def view(step: int) -> verify_pb2.RoundView:
    verify = verify_pb2.VerifyInput(
        session=[2**63],
        round=[1],
        base_committed_len=[5],
        num_tokens_per_req=[2],
        draft_token=[100, 101],
        parents=[-1, 0],
    )
    return verify_pb2.RoundView(step=step, time_unix_ms=1, verify_input=verify)


class Target(target_pb2_grpc.TargetServiceServicer):
    def InspectRound(self, request, context):
        return target_pb2.TargetServiceInspectRoundResponse(round=view(7))

    def WatchRounds(self, request, context):
        for step in (8, 9):
            yield target_pb2.TargetServiceWatchRoundsResponse(round=view(step))


class Draft(draft_pb2_grpc.DraftServiceServicer):
    def InspectRound(self, request, context):
        return draft_pb2.DraftServiceInspectRoundResponse(round=view(3))

    def WatchRounds(self, request, context):
        context.abort(grpc.StatusCode.UNAVAILABLE, "the draft is draining")
        yield


@dataclass(frozen=True)
class Services:
    target: str
    draft: str


@pytest.fixture
def services() -> Iterator[Services]:
    server = grpc.server(futures.ThreadPoolExecutor(4))
    target_pb2_grpc.add_TargetServiceServicer_to_server(Target(), server)
    draft_pb2_grpc.add_DraftServiceServicer_to_server(Draft(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield Services(address, address)
    server.stop(None).wait()


def test_the_services_are_found_through_the_router(router, services, capsys):
    state = router_pb2.ReplicaState
    router.info = router_pb2.RouterServiceGetInfoResponse(
        targets=[state(address="127.0.0.1:1"), state(address=services.target, ready=True)],
        drafts=[state(address=services.draft, ready=True)],
    )
    assert main(["inspect", "--router", router.address]) == 0
    out = capsys.readouterr().out
    assert f"target {services.target}  step 7 at" in out
    assert f"draft {services.draft}  step 3 at" in out


def test_a_named_service_is_shown_alone_without_asking_the_router(services, capsys):
    assert main(["inspect", "--router", "127.0.0.1:1", "--target", services.target, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["target"]["step"] == 7
    assert document["target"]["verify_input"]["session"] == [2**63]
    assert "draft" not in document


def test_watch_shows_each_round_until_the_service_ends_the_stream(services, capsys):
    assert main(["inspect", "--target", services.target, "--watch", "--json"]) == 0
    assert [json.loads(line)["step"] for line in capsys.readouterr().out.splitlines()] == [8, 9]


def test_a_watched_service_that_goes_away_is_an_error_with_its_words(services, capsys):
    assert main(["inspect", "--draft", services.draft, "--watch"]) == 4
    assert "the draft is draining" in capsys.readouterr().err


def test_a_router_without_a_ready_service_says_so(router, capsys):
    router.info = router_pb2.RouterServiceGetInfoResponse()
    assert main(["inspect", "--router", router.address]) == 4
    err = capsys.readouterr().err
    assert err.startswith("target: the router knows none\ndraft: the router knows none\n")
    assert "no service that is ready" in err


def test_what_the_router_knows_and_is_not_shown_is_named_with_why_and_for_how_long(router, services, capsys):
    state = router_pb2.ReplicaState
    router.info = router_pb2.RouterServiceGetInfoResponse(
        targets=[
            state(address=services.target, ready=True, unchanged_s=9.0),
            state(address="127.0.0.1:3", ready=True),
            state(address="127.0.0.1:4", message="draining", unchanged_s=7300.0),
        ],
        drafts=[
            state(address="127.0.0.1:1", message="nothing answers there", unchanged_s=12.4),
            state(address="127.0.0.1:2"),
        ],
    )
    assert main(["inspect", "--router", router.address, "--json"]) == 0
    out, err = capsys.readouterr()
    assert list(json.loads(out)) == ["target"]
    assert err.splitlines() == [
        "target 127.0.0.1:4  not ready for 2 h: draining",
        "target: ready as well, name one by --target: 127.0.0.1:3",
        "draft 127.0.0.1:1  not ready for 12 s: nothing answers there",
        "draft 127.0.0.1:2  not ready: no word from it yet",
    ]


def test_one_that_does_not_answer_hides_no_other(services, capsys):
    assert main(["inspect", "--target", services.target, "--draft", "127.0.0.1:1"]) == 4
    out, err = capsys.readouterr()
    assert f"target {services.target}  step 7 at" in out
    assert err.startswith("paceline inspect: draft: nothing answers at 127.0.0.1:1")
    assert main(["inspect", "--target", "127.0.0.1:1", "--draft", services.draft, "--json"]) == 4
    assert list(json.loads(capsys.readouterr().out)) == ["draft"]


def test_one_that_goes_away_ends_no_other(services, capsys):
    assert main(["inspect", "--target", services.target, "--draft", services.draft, "--watch"]) == 4
    out, err = capsys.readouterr()
    assert (out.count("  step 8 at"), out.count("  step 9 at")) == (1, 1)
    assert err == "paceline inspect: draft: the draft is draining\n"


def test_a_model_path_without_a_tokenizer_is_refused_before_anybody_is_asked(tmp_path, capsys):
    assert main(["inspect", "--target", "127.0.0.1:1", "--model-path", str(tmp_path)]) == 3
    assert f"there is no {tmp_path}/tokenizer.json" in capsys.readouterr().err


def test_an_empty_model_path_shows_tokens_as_numbers(services, capsys):
    assert main(["inspect", "--target", services.target, "--model-path="]) == 0
    assert "100\n" in capsys.readouterr().out
