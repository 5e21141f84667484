"""The watch over one draft: who it is, and its load as it changes. Rows and trees never come this way."""

from __future__ import annotations

import asyncio
import logging
import random

import grpc

from paceline.errors import MismatchError, PacelineError, UnavailableError
from paceline.plumbing import Plumbing
from paceline.v1 import common_pb2, draft_pb2, draft_pb2_grpc
from router import serve_codec
from router.backoff import Backoff
from router.link_listener import DraftListener
from router.peer import DraftLoad, PeerInfo
from router.peer_link import CONNECT_TIMEOUT_S, next_message, stream_errors
from router.readiness import Readiness

_log = logging.getLogger(__name__)


class DraftLink:
    """One draft. info is None while it cannot be reached; message says why."""

    def __init__(self, address: str, listener: DraftListener, plumbing: Plumbing) -> None:
        self.address = address
        self.info: PeerInfo | None = None
        self.info_message = common_pb2.ServiceInfo()  # the last one heard
        self.load = DraftLoad()
        self.message = "not connected yet"
        self.contacted = asyncio.Event()  # once the first attempt to reach it has succeeded or failed
        self.over = asyncio.Event()  # no longer named by --drafts
        self.readiness = Readiness(asyncio.get_running_loop().time)
        self._listener = listener
        self._plumbing = plumbing

    @property
    def ready(self) -> bool:
        return self.info is not None and not self.load.draining

    def retire(self) -> None:
        """No longer named by --drafts: its requests get another, where one fits."""
        self.over.set()
        self.message = "leaving"
        if self.info is not None:
            self.info = None
            self.readiness.note(False)
            self._listener.on_draft_changed(self)

    def reinstate(self) -> None:
        """Named again."""
        self.over.clear()

    async def run(self) -> None:
        """Keeps watching until cancelled."""
        backoff = Backoff(random.Random())
        while True:
            try:
                async with self._plumbing.open_channel(self.address) as channel:
                    await self._watch(draft_pb2_grpc.DraftServiceStub(channel))
            except grpc.aio.AioRpcError as error:
                message = await self._plumbing.explain(self.address, error, wanted="draft")
            except PacelineError as error:
                message = str(error)
            if self.info is not None:
                backoff.reset()
                self.info = None
                self.readiness.note(False)
                self._listener.on_draft_changed(self)
            if message != self.message:
                _log.warning("draft %s is not reachable: %s", self.address, message)
            self.message = message
            self.contacted.set()
            await asyncio.sleep(backoff.next_s())

    async def _watch(self, stub: draft_pb2_grpc.DraftServiceAsyncStub) -> None:
        """One connection, from GetInfo to the load stream's end, which is always an error."""
        with stream_errors:
            reply = await stub.GetInfo(draft_pb2.DraftServiceGetInfoRequest(), timeout=CONNECT_TIMEOUT_S)
        info = serve_codec.decode_info(reply.info)
        if info.service != "draft":
            raise MismatchError(f"is a {info.service or 'service without a name'}, not a draft; fix --drafts")
        call = stub.WatchLoad(draft_pb2.WatchLoadRequest())
        try:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    message = await next_message(call, draft_pb2.WatchLoadResponse)
            except TimeoutError as error:
                raise UnavailableError(f"no load report within {CONNECT_TIMEOUT_S:g} s") from error
            self.load = serve_codec.decode_draft_load(message)
            if self.load.incarnation != info.incarnation:
                raise UnavailableError("restarted between two calls")
            self.info, self.info_message, self.message = info, reply.info, ""
            self.readiness.note(self.ready)
            _log.info("draft %s is up, incarnation %x", self.address, info.incarnation)
            self.contacted.set()
            self._listener.on_draft_changed(self)
            while True:
                message = await next_message(call, draft_pb2.WatchLoadResponse)
                was_draining = self.load.draining
                self.load = serve_codec.decode_draft_load(message)
                if self.load.draining != was_draining:
                    self.readiness.note(self.ready)
                    self._listener.on_draft_changed(self)
        finally:
            call.cancel()
