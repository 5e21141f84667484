"""Times rounds through a draft's lane: from a target's message on the socket to the answer's last byte.

    python -m bench.host_draft_link --sessions 1,8,32,64 --draft-ms 0.85
    python -m bench.host_draft_link --sessions 1,32 --draft 127.0.0.1:9100 --shape 3,1,4

Without --draft, a real service in a process of its own, whose head computes nothing and whose rounds only wait for
--draft-ms; "host" is what a round takes beyond that. Every session commits 2 rows and asks for a tree. Milliseconds:
quartiles.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import queue
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import quantiles

import grpc
import numpy as np

from bench.host_round import serve_draft, serving
from paceline.address import host_of
from paceline.codec import encode_sampling_params
from paceline.frames import FrameSocket, frame
from paceline.round_codec import fill_extend
from paceline.rounds import ExtendColumns, RawTensor
from paceline.types import SamplingParams, TreeShape
from paceline.v1 import common_pb2, draft_pb2, draft_pb2_grpc

_INCARNATION, _ROWS, _WARM_UPS = 7, 2, 50
_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Load:
    """What every round asks."""

    sessions: int
    shape: TreeShape
    rounds: int
    pause_s: float  # between an answer and the next message: as long as a target verifies


class LaneTarget:
    """A target's end of one lane."""

    def __init__(self, info: common_pb2.ServiceInfo, sock: socket.socket) -> None:
        self._info = info
        self._frames = FrameSocket(sock)
        welcome = self._frames.receive()
        assert not welcome, "the draft answers a token with an empty frame"

    def measure(self, load: Load) -> list[float]:
        """Seconds of each round."""
        sampling = encode_sampling_params(SamplingParams())
        max_len = _ROWS * (load.rounds + _WARM_UPS)
        numbers = range(load.sessions)
        opening = [draft_pb2.OpenSession(session=n, max_len=max_len, sampling_params=sampling) for n in numbers]
        opened = self._ask(draft_pb2.SpeculateRequest(open=opening)).status
        assert set(opened.code) == {draft_pb2.SESSION_CODE_OK}, "the draft has no room for the sessions"
        spent_s = []
        for round_ in range(1, load.rounds + _WARM_UPS):
            message = draft_pb2.SpeculateRequest()
            fill_extend(message.extend, self._columns(load, round_), _INCARNATION)
            payload = message.SerializeToString()
            time.sleep(load.pause_s)
            start_s = time.perf_counter()
            self._frames.send(self._frames.send_now(payload))
            answer = self._frames.receive()
            spent_s.append(time.perf_counter() - start_s)
            trees = draft_pb2.SpeculateResponse.FromString(answer).verify
            assert len(trees.session) == load.sessions, "a session got no tree"
        self._frames.send(frame(draft_pb2.SpeculateRequest(release=list(numbers)).SerializeToString()))
        return spent_s[_WARM_UPS:]

    def _ask(self, message: draft_pb2.SpeculateRequest) -> draft_pb2.SpeculateResponse:
        self._frames.send(frame(message.SerializeToString()))
        return draft_pb2.SpeculateResponse.FromString(self._frames.receive())

    def _columns(self, load: Load, round_: int) -> ExtendColumns:
        def all_of(value: int) -> np.ndarray:
            return np.full(load.sessions, value, np.int64)

        rows, size, shape = load.sessions * _ROWS, self._info.feature_size, load.shape
        features = bytes(rows * size * _ITEM_BYTES[self._info.dtype])
        return ExtendColumns(
            session=np.arange(load.sessions, dtype=np.uint64),
            round=all_of(round_),
            base_committed_len=all_of(_ROWS * (round_ - 1)),
            num_tokens=all_of(_ROWS),
            propose=np.ones(load.sessions, np.bool_),
            num_steps=all_of(shape.num_steps),
            eagle_topk=all_of(shape.eagle_topk),
            num_draft_tokens=all_of(shape.num_draft_tokens),
            min_path_permille=all_of(shape.min_path_permille),
            verified_id=np.full(rows, 7, np.int32),
            hidden_states=RawTensor(self._info.dtype, (rows, size), features),
        )


@contextlib.contextmanager
def connected(address: str) -> Iterator[LaneTarget]:
    """By the lane that the draft offers."""
    with grpc.insecure_channel(address) as channel:
        stub = draft_pb2_grpc.DraftServiceStub(channel)
        info = stub.GetInfo(draft_pb2.DraftServiceGetInfoRequest()).info
        hello = draft_pb2.DraftHello(incarnation=_INCARNATION, target="bench", feature_id=info.feature_id)
        requests: queue.SimpleQueue[draft_pb2.SpeculateRequest | None] = queue.SimpleQueue()
        requests.put(draft_pb2.SpeculateRequest(hello=hello))
        call = stub.Speculate(iter(requests.get, None))
        lane = next(call).lane
        assert lane.port, "the draft offers no lane"
        with socket.create_connection((host_of(address), lane.port)) as sock:
            sock.sendall(frame(lane.token))
            target = LaneTarget(info, sock)
            yield target
        requests.put(None)
        call.cancel()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(part) for part in text.split(",")]  # noqa: E731
    parser.add_argument("--sessions", type=numbers, default=[1, 8, 32, 64])
    parser.add_argument("--draft", help="HOST:PORT of one that runs, in place of one that only waits")
    parser.add_argument("--draft-ms", type=float, default=0.85)
    parser.add_argument("--shape", type=lambda text: TreeShape(*numbers(text)), default=TreeShape(5, 4, 16))
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--pause-ms", type=float, default=5.0)
    args = parser.parse_args(argv)
    draft_ms = 0.0 if args.draft else args.draft_ms
    serve = functools.partial(serve_draft, by_lane=True)
    print("| sessions | round 25 % | 50 % | 75 % | host 50 % |\n|---|---|---|---|---|")
    for sessions in args.sessions:
        load = Load(sessions, args.shape, args.rounds, args.pause_ms / 1e3)
        with contextlib.ExitStack() as stack:
            address = args.draft
            if address is None:
                address = f"127.0.0.1:{stack.enter_context(serving(serve, sessions, draft_ms / 1e3))}"
            spent_s = stack.enter_context(connected(address)).measure(load)
        round_ms = [part * 1e3 for part in quantiles(spent_s, n=4)]
        figures = [*round_ms, round_ms[1] - draft_ms]
        print(f"| {sessions} | {' | '.join(f'{figure:.3f}' for figure in figures)} |", flush=True)


if __name__ == "__main__":
    main()
