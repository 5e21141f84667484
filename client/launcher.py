"""Router, drafts and targets as processes of this machine, on loopback unless told otherwise."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from client.client import PacelineClient
from client.credentials import Credentials
from client.launcher_config import FleetConfig
from client.mps import MpsDaemon
from client.placement import FleetSize, Placement, count_gpus, place
from client.preflight import check_flags, listeners_in
from client.process import ServiceProcess, ServiceStartError
from paceline.errors import ConfigError, UnavailableError
from paceline.ports import check_ports, listeners_of

ROUTER_MODULE = "router"
TARGET_MODULE = "target_service"
DRAFT_MODULE = "draft_service"
_LINK_CHECK_INTERVAL_S = 0.05
_ROUTER_END_S = 5.0  # after its drain: it cancels what still runs and closes its connections
_ROUTER_GONE_S = 0.5
_LOOK_S = 0.1  # at the other services while one is awaited


class Fleet:
    """The running services. ``with Fleet(config) as fleet:`` starts them and stops them whatever happens.

    To make one raises ConfigError where the devices do not suffice.
    Owns the processes and its temporary log folder. Start it from a thread that lives as long as the fleet: the
    kernel kills the services when that thread ends. Used by one thread at a time.
    """

    def __init__(self, config: FleetConfig) -> None:
        self.config = config
        placement = _placement(config)
        self._mps = MpsDaemon() if config.mps else None
        self._keep_logs = bool(config.log_dir)
        self.log_dir = Path(config.log_dir or tempfile.mkdtemp(prefix="paceline-logs-"))
        self.drafts = [
            self._process("draft", i, DRAFT_MODULE, [*placement.drafts[i], *config.flags_of_draft()])
            for i in range(config.num_drafts)
        ]
        self.targets = [
            self._process("target", i, TARGET_MODULE, [*placement.targets[i], *config.flags_of_target()])
            for i in range(config.num_targets)
        ]
        self.router: ServiceProcess | None = None

    @property
    def processes(self) -> list[ServiceProcess]:
        """In the order in which they stop: the router drains while its targets still serve."""
        return [*([self.router] if self.router else []), *self.targets, *self.drafts]

    @property
    def router_address(self) -> str:
        assert self.router is not None, "the fleet has not been started"
        return self.router.address

    def start(self) -> None:
        """Starts all and waits until the router is linked with each.

        Raises ServiceStartError; then all are stopped, and the logs kept unless it is a refusal. ConfigError where
        log_dir cannot be made or a port cannot be had; nothing was started then.
        """
        try:
            self.log_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"--log-dir is {self.log_dir}: {error.strerror}; name a folder that this user may make"
            ) from error
        deadline_s = time.monotonic() + self.config.start_timeout_s
        try:
            self._check()
            workers = [*self.drafts, *self.targets]
            if self._mps is not None:
                self._mps.start()
            for process in workers:
                process.environment = {} if self._mps is None else self._mps.environment
                process.start()
            _wait_for_all(workers, deadline_s)
            self.router = ServiceProcess(
                "router",
                ROUTER_MODULE,
                flags=self.config.flags_of_router(self._peer_flags()),
                port=self.config.router_port,
                log_path=self.log_dir / "router.log",
            )
            self.router.start()
            self.router.wait_ready(deadline_s)
            self._wait_for_links(min(deadline_s, time.monotonic() + self.config.link_timeout_s))
        except BaseException as error:
            is_refusal = isinstance(error, ServiceStartError) and error.is_refusal
            if not is_refusal and any(process.pid is not None for process in self.processes):
                self._keep_logs_for(error)
            self.stop()
            raise

    def stop(self) -> None:
        """SIGTERM to the router, then to the rest at once; SIGKILL to each that outlasts its time. Idempotent.

        Running answers get ``config.drain_timeout_s``. What interrupts this ends all at once, as ``kill`` does.
        """
        try:
            if self.router is not None:
                self.router.stop(grace_s=self.config.drain_timeout_s + _ROUTER_END_S)
            others = [*self.targets, *self.drafts]
            for process in others:
                process.terminate()
            deadline_s = time.monotonic() + self.config.stop_grace_s
            for process in others:
                process.stop(grace_s=max(0.0, deadline_s - time.monotonic()))
        finally:
            self.kill()

    def kill(self) -> None:
        """SIGKILL to all that is left, and the end of what the fleet owns. Idempotent."""
        for process in self.processes:
            process.kill()
        if self._mps is not None:
            self._mps.stop()
        if not self._keep_logs:
            shutil.rmtree(self.log_dir, ignore_errors=True)

    def __enter__(self) -> Fleet:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keep_logs_for(error)
        self.stop()

    def _keep_logs_for(self, error: BaseException | None) -> None:
        """A folder that stays is named by the error, or by a note to it."""
        if isinstance(error, Exception) and not self._keep_logs:
            self._keep_logs = True
            if str(self.log_dir) not in str(error):
                error.add_note(f"the logs of the services: {self.log_dir}")

    def _check(self) -> None:
        """Raises ConfigError or ServiceStartError for what can be told without a model."""
        config = self.config
        listeners = listeners_of(config.host, config.router_port)
        listeners += listeners_in(config.router_flags, host=config.host)
        for flags, count in ((config.target_flags, config.num_targets), (config.draft_flags, config.num_drafts)):
            listeners += listeners_in(flags, host=config.host) * count
        check_ports(listeners)
        if config.router_flags:
            router = [*config.flags_of_router(), "--port", str(config.router_port)]
            check_flags("router", ROUTER_MODULE, router, timeout_s=config.start_timeout_s)

    def _wait_for_links(self, deadline_s: float) -> None:
        with PacelineClient(self.router_address, credentials=Credentials(self.config.tls)) as client:
            while True:
                self._check_running()
                try:
                    info = client.info()
                except UnavailableError:  # its port closes before its process is gone
                    time.sleep(_ROUTER_GONE_S)
                    self._check_running()
                    raise
                waiting = [replica for replica in (*info.targets, *info.drafts) if not replica.ready]
                if not waiting:
                    return
                # A service that the router has heard and does not take is of another model or head, and stays so.
                refused = [replica for replica in waiting if replica.info.service and replica.message]
                if refused or time.monotonic() > deadline_s:
                    named = refused or waiting
                    why = "; ".join(f"{replica.address}: {replica.message or 'no answer'}" for replica in named)
                    raise ServiceStartError(f"the router is not linked with all services: {why}; logs: {self.log_dir}")
                time.sleep(_LINK_CHECK_INTERVAL_S)

    def _check_running(self) -> None:
        for process in self.processes:
            process.check_running()

    def _process(self, name: str, index: int, module: str, flags: Sequence[str]) -> ServiceProcess:
        log_path = self.log_dir / f"{name}-{index}.log"
        return ServiceProcess(log_path.stem, module, flags=flags, port=0, log_path=log_path)

    def _peer_flags(self) -> list[str]:
        """Once they serve."""
        flags = ["--targets", ",".join(process.address for process in self.targets)]
        return [*flags, *(["--drafts", ",".join(process.address for process in self.drafts)] if self.drafts else [])]


def _wait_for_all(processes: Sequence[ServiceProcess], deadline_s: float) -> None:
    """Until each serves. Raises ServiceStartError for the first that ends instead, whichever it is."""
    waiting = list(processes)
    while waiting:
        waiting[0].has_answered(min(_LOOK_S, max(0.0, deadline_s - time.monotonic())))
        is_over = time.monotonic() >= deadline_s
        for process in [process for process in waiting if is_over or process.has_answered(0.0)]:
            process.wait_ready(deadline_s)
            waiting.remove(process)


def _placement(config: FleetConfig) -> Placement:
    size = FleetSize(config.num_targets, config.num_drafts, config.tp_size)
    asks = config.devices.device != "cpu"
    return place(size, config.devices, num_gpus=count_gpus() if asks else 0)
