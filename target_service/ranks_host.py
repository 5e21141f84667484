"""A host that computes ranks for a target whose rank 0 is elsewhere: their processes, and health for its probes."""

from __future__ import annotations

import asyncio
import logging
import signal

from paceline.plumbing import Plumbing
from paceline.rpc import termination_event
from target_service.config import TargetConfig
from target_service.servicer import SERVICE_NAME
from target_service.tp_workers import TpWorkers

_STOP_GRACE_S = 1.0
_log = logging.getLogger(__name__)


async def run_host(config: TargetConfig) -> int:
    """Serves health until rank 0 has told every rank to end; returns the exit code. Alive, but never ready for calls.

    SIGTERM alone ends nothing: rank 0, which gets one as well, still needs these ranks while it drains. A rank that is
    lost, and rank 0's death, end the process at once. Raises ConfigError where the port is taken.
    """
    rpc = Plumbing(config).server(SERVICE_NAME)
    await rpc.start(config.host, config.port)
    workers = TpWorkers(config)
    try:
        async with termination_event((signal.SIGTERM,)) as terminated:
            over = asyncio.create_task(asyncio.to_thread(workers.wait))
            told = asyncio.create_task(terminated.wait())
            await asyncio.wait((over, told), return_when=asyncio.FIRST_COMPLETED)
            if not over.done():
                _log.info("told to end; waiting for rank 0 to drain")
            await over
            told.cancel()
    finally:
        workers.kill()
        await rpc.stop(_STOP_GRACE_S)
    return 0
