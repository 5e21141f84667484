"""python -m target_service as a process, and a router's stream to it."""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil

from paceline.rpc import open_channel
from paceline.v1 import target_pb2, target_pb2_grpc
from tests.support.target_peer import RouterPeer

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 90.0


class Program:
    """A target service's process."""

    def __init__(self, *flags: str) -> None:
        self.command = [sys.executable, "-m", "target_service", *flags]
        self.process = subprocess.Popen(
            self.command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def address(self) -> str:
        """Waits until it is ready."""
        ready, _, _ = select.select([self.process.stdout], [], [], WAIT_S)
        line = self.process.stdout.readline() if ready else ""
        assert line.startswith("ready "), self.process.stderr.read() if self.process.poll() is not None else line
        return line.split()[1]

    def end(self) -> tuple[int, str]:
        """Waits for the exit code and what it wrote to stderr."""
        _, errors = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, errors

    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def discard(self) -> None:
        """Kills it where it still runs."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            stream.close()


@contextlib.asynccontextmanager
async def router_of(address: str) -> AsyncIterator[RouterPeer]:
    async with open_channel(address) as channel:
        peer = RouterPeer(target_pb2_grpc.TargetServiceStub(channel).Serve())
        await peer.send(hello=target_pb2.ServeHello(router="test"))
        await peer.read()
        yield peer
