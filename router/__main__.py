"""python -m router: starts one router and serves until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Sequence

from paceline.interrupt import ending_at_ctrl_c, exiting_at_ctrl_c

with ending_at_ctrl_c("router"):  # the imports take half a second
    from paceline.address import address_of
    from paceline.config import describe, exit_with, parse_flags
    from paceline.errors import PacelineError
    from paceline.logs import set_up_logging
    from paceline.rpc import termination_event
    from router.config import RouterConfig
    from router.running import RouterParts, running_router

_log = logging.getLogger("router")


def main(argv: Sequence[str] | None = None) -> None:
    """Exits 0 after a drain; with an error's own code and message where the router cannot start."""
    try:
        config = parse_flags(RouterConfig, sys.argv[1:] if argv is None else argv, prog="router")
        if config.check:
            return RouterParts.load(config).close()
        set_up_logging("router", level=config.log_level, format=config.log_format)
        asyncio.run(_serve(config))
    except PacelineError as error:
        exit_with(error, prog="router")


async def _serve(config: RouterConfig) -> None:
    _log.info("%s", describe(config))
    async with termination_event() as terminated, running_router(config) as router:
        gc.collect()
        gc.freeze()  # else each full collection walks all that start-up made: 75 ms on a busy core
        if router.page_port:
            _log.info("the live page is at http://%s/", address_of(config.page_host, router.page_port))
        print(f"ready {address_of(config.host, router.port)}", flush=True)
        stop = asyncio.create_task(terminated.wait())
        await asyncio.wait({stop, router.links}, return_when=asyncio.FIRST_COMPLETED)
        if router.links.done():
            stop.cancel()
            router.links.result()
        _log.info("draining %d requests for up to %g s", router.dispatcher.num_live, config.drain_timeout_s)
        await router.drain()


if __name__ == "__main__":
    with exiting_at_ctrl_c("router"):
        main()
