"""python -m target_service: prints "ready HOST:PORT" once it serves; SIGTERM drains it."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from paceline.interrupt import ending_at_ctrl_c, exiting_at_ctrl_c

_PROG = "target_service"

with ending_at_ctrl_c(_PROG):  # the imports take half a second
    from prometheus_client import CollectorRegistry

    from paceline.address import address_of
    from paceline.config import describe, exit_with, parse_flags
    from paceline.errors import PacelineError
    from paceline.logs import set_up_logging
    from paceline.metrics import MetricsServer
    from paceline.plumbing import Plumbing
    from paceline.ports import check_ports
    from paceline.rpc import termination_event
    from paceline.threads import share_cores, share_interpreter
    from target_service.config import TargetConfig
    from target_service.tp_workers import TpWorkers, end_process

if TYPE_CHECKING:
    from target_service.service import LoadedTarget

_log = logging.getLogger(_PROG)


def main(argv: Sequence[str]) -> None:
    """Runs the service until it is told to end."""
    try:
        config = parse_flags(TargetConfig, argv, prog=_PROG)
        set_up_logging(_PROG, level=config.log_level, format=config.log_format)
        _log.info("%s", describe(config))
        if config.node_rank == 0:  # the hosts of further ranks listen on none
            check_ports(config.listeners)
        share_cores(config.threads_per_rank)
        share_interpreter()
        with ending_at_ctrl_c(_PROG):
            from target_service.loading import check_model  # imports torch, which reads the environment then
            from target_service.ranks_host import run_host

        check_model(config)
        if config.node_rank > 0:
            end_process(asyncio.run(run_host(config)))
        if config.tp_size == 1:
            _run(config, init_method="")
        else:
            _run_ranks(config)
    except PacelineError as error:
        exit_with(error, prog=_PROG)


def _run_ranks(config: TargetConfig) -> NoReturn:
    workers = TpWorkers(config)
    code = 0
    try:
        _run(config, workers.init_method)
        workers.close()
    except PacelineError as error:
        print(f"{_PROG}: {error}", file=sys.stderr)
        code = error.exit_code
    except Exception:  # noqa: BLE001 - whatever ends rank 0 must end its process, and the interpreter's end may hang
        _log.exception("the target ended")
        code = 1
    finally:
        workers.kill()
    end_process(code)


def _run(config: TargetConfig, init_method: str) -> None:
    from target_service.service import LoadedTarget

    registry = CollectorRegistry()
    plumbing = Plumbing(config, registry, service="target")
    target = LoadedTarget.load(config, init_method=init_method, registry=registry, tracer=plumbing.tracer)
    with MetricsServer(registry, host=config.host, port=config.metrics_port):
        asyncio.run(_serve(target, plumbing))


async def _serve(target: LoadedTarget, plumbing: Plumbing) -> None:
    from target_service.service import TargetService

    service = TargetService(target, plumbing)
    async with termination_event() as terminated:
        port = await service.start()
        gc.freeze()  # else each full collection walks all of torch, in the middle of a step
        print(f"ready {address_of(target.config.host, port)}", flush=True)
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
