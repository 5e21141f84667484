"""python -m draft_service: prints "ready HOST:PORT" once it serves; SIGTERM drains it."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.interrupt import ending_at_ctrl_c, exiting_at_ctrl_c

_PROG = "draft_service"

with ending_at_ctrl_c(_PROG):  # the imports take half a second
    from prometheus_client import CollectorRegistry

    from draft_service.config import DraftConfig
    from paceline.address import address_of
    from paceline.config import describe, exit_with, parse_flags
    from paceline.errors import PacelineError
    from paceline.logs import set_up_logging
    from paceline.plumbing import Plumbing
    from paceline.ports import check_ports
    from paceline.threads import share_cores, share_interpreter

if TYPE_CHECKING:
    from draft_service.service import LoadedDraft

_log = logging.getLogger(_PROG)


def main(argv: Sequence[str]) -> None:
    """Runs the service until it is told to end."""
    try:
        config = parse_flags(DraftConfig, argv, prog=_PROG)
        set_up_logging(_PROG, level=config.log_level, format=config.log_format)
        _log.info("%s", describe(config))
        check_ports(config.listeners)
        share_cores(config.num_threads)
        share_interpreter()
        registry = CollectorRegistry()
        plumbing = Plumbing(config, registry, service="draft")
        with ending_at_ctrl_c(_PROG):
            from draft_service.service import LoadedDraft  # imports torch, which reads the environment then

        asyncio.run(_serve(LoadedDraft.load(config, tracer=plumbing.tracer), registry, plumbing))
    except PacelineError as error:
        exit_with(error, prog=_PROG)


async def _serve(draft: LoadedDraft, registry: CollectorRegistry, plumbing: Plumbing) -> None:
    from draft_service.service import DraftService
    from paceline.metrics import MetricsServer
    from paceline.rpc import termination_event

    config = draft.config
    service = DraftService(draft, registry=registry, plumbing=plumbing)
    with MetricsServer(registry, host=config.host, port=config.metrics_port):
        async with termination_event() as terminated:
            port = await service.start()
            gc.freeze()  # else each full collection walks all of torch: 2 ms a round of 256 sessions, bench.host_draft
            print(f"ready {address_of(config.host, port)}", flush=True)
            signal = asyncio.create_task(terminated.wait())
            await asyncio.wait((signal, service.failed), return_when=asyncio.FIRST_COMPLETED)
            signal.cancel()
            await service.drain()
            await service.close()
            await asyncio.to_thread(plumbing.close)
            if service.failed.done():
                service.failed.result()


if __name__ == "__main__":
    with exiting_at_ctrl_c(_PROG):
        main(sys.argv[1:])
