"""FleetConfig: which services a launcher starts, and the flags that it gives them."""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from client.placement import DeviceFlags
from paceline.config import require
from paceline.config_file import flag_of, read_values, split_config
from paceline.defaults import DEFAULT_HEAD_PATH, DEFAULT_MODEL_PATH
from paceline.errors import ConfigError
from paceline.threads import num_cores
from paceline.tls import TlsFiles

_TLS = {f"--tls-{name}": f"--tls-{name} itself is for all services" for name in ("cert", "key", "ca", "peer-name")}
_DEVICE = "name devices with --device, --target-devices or --draft-devices themselves"
_FREE_PORT = {"--port": "each takes a free one"}
_OWN_FLAGS = {  # of each service's flags those that a launcher sets by its own, and which those are
    "router": {
        "--port": "name the router's with --port itself",
        "--targets": "it gets those that are started; --targets itself says how many",
        "--drafts": "it gets those that are started; --drafts itself says how many",
        **_TLS,
    },
    "target": {
        **_FREE_PORT,
        "--tp-size": "--tp-size itself is for all targets",
        "--device": _DEVICE,
        "--base-gpu-id": _DEVICE,
        **_TLS,
    },
    "draft": {**_FREE_PORT, "--device": _DEVICE, **_TLS},
}


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """Which services to start, and how. Raises ConfigError, naming the flag of ``paceline serve``."""

    num_targets: int = 1
    num_drafts: int = 1
    tp_size: int = 1
    devices: DeviceFlags = field(default_factory=DeviceFlags)
    dtype: str = "bfloat16"
    model_path: str = DEFAULT_MODEL_PATH
    head_path: str = DEFAULT_HEAD_PATH  # "": none, and then no drafts
    host: str = "127.0.0.1"
    router_port: int = 0  # 0: a free one
    num_threads: int = 0  # of each process that runs a model; 0: the cores shared out over a target's ranks
    log_dir: str = ""  # "": a temporary folder, removed at the end unless an error names it
    start_timeout_s: float = 180.0
    link_timeout_s: float = 30.0  # of the start: all services are ready, and a link is a connection and one message
    stop_grace_s: float = 10.0  # what running answers get at the end, unless router_flags say otherwise
    mps: bool = False  # drafts and targets on one GPU compute at the same time
    tls: TlsFiles | None = None  # of every service, and of the launcher's own questions to the router
    router_flags: tuple[str, ...] = ()
    target_flags: tuple[str, ...] = ()
    draft_flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.num_targets >= 1, "targets", self.num_targets, "at least 1")
        require(self.num_drafts >= 0, "drafts", self.num_drafts, "0 (no speculation) or more")
        require(self.tp_size >= 1, "tp_size", self.tp_size, "at least 1")
        require(self.num_threads >= 0, "num_threads", self.num_threads, "0 (choose) or more")
        require(0 <= self.router_port < 65536, "port", self.router_port, "0 (a free one) to 65535")
        limited = math.isfinite(self.start_timeout_s) and self.start_timeout_s > 0
        require(limited, "start_timeout_s", self.start_timeout_s, "a number of seconds above 0")
        self._check_service_flags()

    @property
    def drain_timeout_s(self) -> float:
        """What running answers get once the router is asked to end: its own flag, or else stop_grace_s."""
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
        parser.add_argument("--drain-timeout-s", type=float, default=self.stop_grace_s)
        with contextlib.suppress(argparse.ArgumentError):  # the router refuses it, with its own words
            return float(parser.parse_known_args(list(self.router_flags))[0].drain_timeout_s)
        return self.stop_grace_s

    def flags_of_router(self, peers: Sequence[str] = ()) -> list[str]:
        """peers: the flags that name targets and drafts."""
        flags = ["--host", self.host, "--model-path", self.model_path, *self._tls_flags()]
        return [*flags, "--drain-timeout-s", f"{self.stop_grace_s:g}", *peers, *self.router_flags]

    def flags_of_target(self) -> list[str]:
        """Of each, besides its devices."""
        flags = [*self._model_flags(), "--tp-size", str(self.tp_size)]
        flags += ["--num-threads", str(self._num_threads_of_one(self.num_targets * self.tp_size))]
        return [*flags, *self.target_flags]

    def flags_of_draft(self) -> list[str]:
        """Of each, besides its device."""
        flags = [*self._model_flags(), "--num-threads", str(self._num_threads_of_one(max(1, self.num_drafts)))]
        return [*flags, *self.draft_flags]

    def _check_service_flags(self) -> None:
        """What a launcher decides by flags of its own: in a service's flags it would be passed over, or undo them. And
        what it gives each service comes before the service's flags, which may say otherwise, but after their file."""
        services = {
            "router": (self.router_flags, self.flags_of_router()),
            "target": (self.target_flags, self.flags_of_target()),
            "draft": (self.draft_flags, self.flags_of_draft()),
        }
        for name, (own, all_flags) in services.items():
            emitted = {flag.partition("=")[0] for flag in all_flags[: len(all_flags) - len(own)]}
            try:
                named = _named_in(own)
            except ConfigError as error:
                raise ConfigError(f"--{name}-args: {error}") from error
            for flag, words, is_in_file in named:
                rule = _OWN_FLAGS[name].get(flag)
                if is_in_file and flag in emitted:
                    rule = rule or f"serve gives each its own; name {flag} among --{name}-args itself"
                if rule:
                    raise ConfigError(f"--{name}-args has {words}, which is not named there: {rule}")

    def _model_flags(self) -> list[str]:
        flags = ["--host", self.host, "--model-path", self.model_path, "--dtype", self.dtype, *self._tls_flags()]
        return [*flags, f"--speculative-draft-model-path={self.head_path}"]  # empty: no head, not the default one

    def _tls_flags(self) -> list[str]:
        files = self.tls
        if files is None:
            return []
        flags = ["--tls-cert", files.cert, "--tls-key", files.key, "--tls-ca", files.ca]
        return [*flags, *(["--tls-peer-name", files.peer_name] if files.peer_name else [])]

    def _num_threads_of_one(self, num_sharing: int) -> int:
        """Draft and target take turns, so each kind gets all cores; processes of a kind share them."""
        return self.num_threads or max(1, num_cores() // num_sharing)


def _named_in(flags: Sequence[str]) -> list[tuple[str, str, bool]]:
    """The flags that the words name, and those of the file that --config names among them; each with where it stands,
    and whether that is the file.

    Raises ConfigError for a file that cannot be read.
    """
    source, words = split_config(flags)
    keys = [] if source is None else list(read_values(source))
    named = [(word.partition("=")[0], word, False) for word in words]
    return [*named, *((flag_of(key), f"--config {source} with {key!r}", True) for key in keys)]
