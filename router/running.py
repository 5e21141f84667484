"""The running router: built from its configuration, serving while its context is open."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from paceline.chat_template import ChatTemplate
from paceline.metrics import MetricsServer
from paceline.plumbing import Plumbing
from paceline.ports import check_ports
from paceline.rpc import RpcServer
from router.api_keys import ApiKeys
from router.config import RouterConfig
from router.dispatcher import Dispatcher
from router.metrics import RouterMetrics
from router.page.live_page import PageSources, serving_page
from router.request_codec import RequestParser
from router.request_recorder import RequestRecorder
from router.servicer import SERVICE_NAME, RouterServicer
from router.text.tokenizer import TextTokenizer

# A first request should find the drafts that are up; peers that do not answer in this time come later.
_CONTACT_S = 2.0
# What calls get to end by themselves once their requests are over or given up.
_STOP_GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class RouterParts:
    """All that a router needs beside its peers, and that its flags can name wrongly."""

    tokenizer: TextTokenizer
    template: ChatTemplate | None  # None: the model has none
    keys: ApiKeys | None  # None: anybody may ask
    registry: CollectorRegistry
    plumbing: Plumbing

    @classmethod
    def load(cls, config: RouterConfig) -> RouterParts:
        """Raises ConfigError for a port that cannot be had or a file that cannot be used, and ModelLoadError."""
        check_ports(config.listeners)
        registry = CollectorRegistry()
        return cls(
            TextTokenizer.load(config.model_path),
            ChatTemplate.load(config.model_path),
            ApiKeys(config.api_keys, clock=time.monotonic) if config.api_keys else None,
            registry,
            Plumbing(config, registry, service="router", trace_ratio=config.trace_sample_ratio),
        )

    def close(self) -> None:
        """Sends the spans that are left. May take seconds."""
        self.plumbing.close()


@dataclass(frozen=True, slots=True)
class RunningRouter:
    """A router that serves on port."""

    port: int
    page_port: int  # of the live page; 0: there is none
    dispatcher: Dispatcher
    registry: CollectorRegistry
    plumbing: Plumbing
    links: asyncio.Task[None]  # runs until cancelled; ends early by an error of our own alone
    _rpc: RpcServer
    _config: RouterConfig

    async def drain(self) -> None:
        """Not ready from now on, new calls refused; returns when the running ones are over or out of time."""
        self.dispatcher.refuse_new()
        await self._rpc.set_ready(False)
        await self.dispatcher.drained(self._config.drain_timeout_s)


@contextlib.asynccontextmanager
async def running_router(config: RouterConfig) -> AsyncIterator[RunningRouter]:
    """Serves until the context ends. Raises ModelLoadError and ConfigError before it begins."""
    parts = RouterParts.load(config)
    tokenizer, registry, plumbing = parts.tokenizer, parts.registry, parts.plumbing
    metrics = RouterMetrics(registry)
    dispatcher = Dispatcher(
        config, incarnation=secrets.randbits(64), tokenizer=tokenizer, metrics=metrics, plumbing=plumbing
    )
    rng = random.Random()
    parser = RequestParser(
        tokenizer,
        parts.template,
        draw_seed=lambda: rng.getrandbits(64),
        draw_id=lambda: f"{rng.getrandbits(128):032x}",
    )
    rpc = plumbing.server(SERVICE_NAME)
    servicer = RouterServicer(
        config,
        dispatcher,
        parser=parser,
        tokenizer=tokenizer,
        keys=parts.keys,
        recorder=RequestRecorder(
            metrics,
            plumbing.tracer,
            log_requests=config.log_requests,
            clock=asyncio.get_running_loop().time,
        ),
    )
    servicer.add_to(rpc.server)
    page = serving_page(PageSources(config, dispatcher, registry, plumbing, tokenizer))
    with MetricsServer(registry, host=config.host, port=config.metrics_port):
        port = await rpc.start(config.host, config.port)
        links = asyncio.create_task(dispatcher.run(), name="links")
        try:
            async with page as page_port:
                await dispatcher.fleet.contacted(_CONTACT_S)
                await rpc.set_ready(True)
                yield RunningRouter(port, page_port, dispatcher, registry, plumbing, links, rpc, config)
        finally:
            await rpc.stop(_STOP_GRACE_S)
            links.cancel()
            await asyncio.gather(links, return_exceptions=True)
            await asyncio.to_thread(parts.close)
