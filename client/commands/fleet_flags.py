"""Flags of every command that starts services."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass

from client.commands.request_flags import TreeFlags
from client.launcher_config import FleetConfig
from client.placement import DEVICES, DeviceFlags
from paceline.config import flag
from paceline.defaults import DEFAULT_HEAD_PATH, DEFAULT_MODEL_PATH
from paceline.errors import ConfigError
from paceline.tls_flags import TlsFlags

_ROUTER_FLAGS = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")


@dataclass(frozen=True, slots=True)
class FleetFlags(TlsFlags, TreeFlags):
    """Which services to start, and how."""

    targets: int = flag(1, help="target services")
    drafts: int = flag(1, help="draft services; 0 is plain decoding")
    tp_size: int = flag(1, help="ranks of each target")
    device: str = flag("auto", help="cpu or cuda; auto is cuda where there is a GPU", choices=DEVICES)
    target_devices: tuple[str, ...] = flag(
        (), help="cuda:N or cpu of each target, the first GPU of one over several; unset: from GPU 0 on"
    )
    draft_devices: tuple[str, ...] = flag(
        (), help="cuda:N or cpu of each draft; unset: the GPUs after the targets', or the last one"
    )
    mps: bool = flag(
        False, help="let a draft and a target that share a GPU compute at the same time, through NVIDIA's MPS"
    )
    model_path: str = flag(DEFAULT_MODEL_PATH, help="folder of the model, or its GGUF file")
    speculative_draft_model_path: str = flag(DEFAULT_HEAD_PATH, help="folder of the EAGLE-3 head")
    num_threads: int = flag(0, help="compute threads of each model process; 0: the cores shared out")
    log_dir: str = flag("", help="folder for the services' logs; unset: a temporary one")
    start_timeout_s: float = flag(180.0, help="seconds that the services get to load")
    router_args: str = flag("", help="more flags of the router, as one string")
    target_args: str = flag("", help="more flags of each target, as one string")
    draft_args: str = flag("", help="more flags of each draft, as one string")

    def fleet(self, *, dtype: str, host: str = "127.0.0.1", port: int = 0) -> FleetConfig:
        """port is the router's. Raises ConfigError."""
        self.tree_shape()
        return FleetConfig(
            num_targets=self.targets,
            num_drafts=self.drafts,
            tp_size=self.tp_size,
            devices=DeviceFlags(self.device, self.target_devices, self.draft_devices),
            dtype=dtype,
            model_path=self.model_path,
            head_path=self.speculative_draft_model_path,
            host=host,
            router_port=port,
            num_threads=self.num_threads,
            log_dir=self.log_dir,
            start_timeout_s=self.start_timeout_s,
            mps=self.mps,
            tls=self.tls_files(),
            router_flags=(*self.given(*_ROUTER_FLAGS), *_split(self.router_args, "router-args")),
            target_flags=_split(self.target_args, "target-args"),
            draft_flags=_split(self.draft_args, "draft-args"),
        )

    def check_starts_none(self, why: str) -> None:
        """Raises ConfigError where a flag says how to start services. why: none is started, for the message."""
        for field in dataclasses.fields(FleetFlags):
            is_own = field.name in FleetFlags.__annotations__ and field.name != "model_path"  # its tokenizer counts
            if is_own and getattr(self, field.name) != field.default:
                name = field.name.replace("_", "-")
                raise ConfigError(f"--{name} is for services that are started here, and {why}: leave one of them out")

    def given(self, *names: str) -> tuple[str, ...]:
        """Those of the fields that are set, as flags."""
        values = [(name.replace("_", "-"), getattr(self, name)) for name in names]
        return tuple(f"--{name}={value}" for name, value in values if value is not None)


def _split(text: str, name: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"--{name} is {text!r}: {error}; quote it like a shell command") from error
