"""Sampling the rounds of a service that answers as the test says."""

from __future__ import annotations

import contextlib
import threading
from concurrent import futures

import grpc

from bench.round_sampler import RoundSampler
from client.rounds import RoundSource
from paceline.errors import UnavailableError
from paceline.v1 import target_pb2, target_pb2_grpc, verify_pb2
from tests.support.waiting import WAIT_S


class Target(target_pb2_grpc.TargetServiceServicer):
    """Step 7 was over before; each of the steps 8 and 9 is the last one for two looks."""

    def __init__(self):
        self.steps = [7, 8, 8, 9, 9]
        self.done = threading.Event()

    def InspectRound(self, request, context):
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if len(self.steps) == 1:
            self.done.set()
        view = verify_pb2.RoundView(step=step, timings_ms={"forward": float(step)})
        view.verify_input.num_tokens_per_req.extend([1, step])
        return target_pb2.TargetServiceInspectRoundResponse(round=view)


@contextlib.contextmanager
def running(target):
    server = grpc.server(futures.ThreadPoolExecutor(2))
    target_pb2_grpc.add_TargetServiceServicer_to_server(target, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield RoundSource("target", f"127.0.0.1:{port}")
    server.stop(None).wait()


def test_each_new_step_is_sampled_once():
    target = Target()
    with running(target) as source, RoundSampler([source]) as sampler:
        assert target.done.wait(WAIT_S)
    assert [(sample.timings_ms["forward"], sample.most_nodes) for sample in sampler.rounds] == [(8.0, 8), (9.0, 9)]
    assert sampler.error is None


def test_a_service_that_is_gone_is_an_error_to_report():
    with RoundSampler([RoundSource("target", "127.0.0.1:1")]) as sampler:
        sampler._thread.join(WAIT_S)
    assert isinstance(sampler.error, UnavailableError)


def test_nothing_to_look_at_is_no_error():
    with RoundSampler([]) as sampler:
        pass
    assert (sampler.rounds, sampler.error) == ([], None)
