"""``paceline serve``: router, drafts and targets as processes of this machine, until Ctrl-C."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from client.commands.command import Command, parse
from client.commands.fleet_flags import FleetFlags
from client.commands.serve_signals import EndSignals, say
from client.launcher import Fleet
from client.launcher_config import FleetConfig
from client.process import ServiceProcess, ServiceStartError, end_in_words
from paceline.config import flag

_CHECK_INTERVAL_S = 0.5
_MAX_RESTARTS = 5  # of one service within _RESTART_WINDOW_S: more deaths than that are no accident
_RESTART_WINDOW_S = 600.0


@dataclass(frozen=True, slots=True)
class ServeConfig(FleetFlags):
    """Start router, drafts and targets on this machine and keep them running until Ctrl-C."""

    host: str = flag("127.0.0.1", help="address that all services listen on")
    port: int = flag(7100, help="the router's port; the others take free ones")
    dtype: str = flag("bfloat16", help="dtype of the models", choices=("bfloat16", "float16", "float32"))
    speculative_policy: str | None = flag(None, help="off, always, threshold or adaptive; unset: the router's default")
    speculative_disable_batch_threshold: int | None = flag(
        None, help="decoding requests of a target above which it does not speculate"
    )

    def fleet_config(self) -> FleetConfig:
        """Raises ConfigError."""
        fleet = self.fleet(dtype=self.dtype, host=self.host, port=self.port)
        policy = self.given("speculative_policy", "speculative_disable_batch_threshold")
        return dataclasses.replace(fleet, router_flags=(*policy, *fleet.router_flags))


def main(argv: Sequence[str]) -> int:
    config = parse(ServeConfig, argv, command="serve")
    fleet = Fleet(config.fleet_config())
    signals = EndSignals(f"services that start get up to {fleet.config.stop_grace_s:g} s")
    try:
        signals.listen()
        print(f"starting {config.targets} target(s) and {config.drafts} draft(s); logs: {fleet.log_dir}", flush=True)
        with fleet:
            signals.waits_for = f"running answers get up to {fleet.config.drain_timeout_s:g} s"
            for process in fleet.processes:
                print(f"{process.name:9} {process.address}  pid {process.pid}")
            print(f"serving; try: paceline chat --router {fleet.router_address}   (Ctrl-C stops)", flush=True)
            _watch(fleet, restart_timeout_s=config.start_timeout_s)
    except KeyboardInterrupt:
        signals.heed_no_more()
        fleet.kill()  # what a second request to end has left
        say("stopped", sys.stdout)
        return 0


def _watch(fleet: Fleet, *, restart_timeout_s: float) -> NoReturn:
    """Starts services that have died again, each on its port and side by side; ends by KeyboardInterrupt or
    ServiceStartError alone."""
    deaths_s: defaultdict[str, list[float]] = defaultdict(list)  # of each service, when
    deadlines_s: dict[str, float] = {}  # of those that start again
    while True:
        time.sleep(_CHECK_INTERVAL_S)
        for process in fleet.processes:
            now_s = time.monotonic()
            deadline_s = deadlines_s.get(process.name)
            if deadline_s is not None:
                if process.has_answered(0.0) or now_s > deadline_s:
                    process.wait_ready(deadline_s)
                    del deadlines_s[process.name]
                    print(f"the {process.name} is back (pid {process.pid})", flush=True)
            elif not process.running:
                recent = [at_s for at_s in deaths_s[process.name] if now_s - at_s < _RESTART_WINDOW_S]
                deaths_s[process.name] = [*recent, now_s]
                _revive(process, len(recent) + 1)
                deadlines_s[process.name] = now_s + restart_timeout_s


def _revive(process: ServiceProcess, num_deaths: int) -> None:
    """Starts a replica again on its port, and does not wait. Raises ServiceStartError where that is of no use."""
    what = f"the {process.name} ended ({end_in_words(process.exit_code)})"
    if num_deaths > _MAX_RESTARTS:
        minutes = _RESTART_WINDOW_S / 60
        raise ServiceStartError(f"{what}; deaths in {minutes:g} minutes: {num_deaths}; its log is {process.log_path}")
    print(f"{what}; starting it again (log: {process.log_path})", flush=True)
    process.start()


COMMAND = Command("serve", "start router, drafts and targets on this machine", main)
