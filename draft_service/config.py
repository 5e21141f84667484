"""DraftConfig: the draft service's flags."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.config import flag, require
from paceline.defaults import DEFAULT_HEAD_PATH, DEFAULT_MODEL_PATH
from paceline.errors import ConfigError, InvalidInputError
from paceline.logs import LEVELS
from paceline.plumbing import ServiceFlags
from paceline.ports import Listener, listeners_of, require_apart
from paceline.types import TreeShape

DTYPES = ("bfloat16", "float16", "float32")
KERNEL_BACKENDS = ("auto", "triton", "flashinfer", "reference", "cpu")
_GRAPH_SHAPES = "1,1,2;2,1,3;2,3,5;3,1,4;5,1,6;5,4,16;7,8,32"


@dataclass(frozen=True, slots=True)
class DraftConfig(ServiceFlags):
    """Runs the EAGLE-3 head and proposes trees to target services.

    Raises ConfigError, naming the flag, for a value out of its range.
    """

    host: str = flag("127.0.0.1", help="address to listen on")
    port: int = flag(7300, help="port to listen on; 0 takes a free one")
    round_port: int = flag(
        0, help="port to which targets send their rounds directly, beside the service's; 0 takes a free one"
    )
    busy_wait_ms: float | None = flag(
        None,
        help="how long the engine's thread looks for the next round without sleeping, which takes a core; "
        "unset: 10 on a GPU with 4 cores or more, else 0",
    )
    disable_round_lane: bool = flag(False, help="rounds travel by gRPC alone; so they do with --tls-cert")
    metrics_port: int = flag(0, help="port of the Prometheus metrics; 0 serves none")
    log_level: str = flag("info", help="least severe events to log", choices=LEVELS)
    drain_timeout_s: float = flag(30.0, help="seconds that open sessions may go on after SIGTERM")
    model_path: str = flag(DEFAULT_MODEL_PATH, help="the target's model: its embedding and output matrix are shared")
    speculative_draft_model_path: str = flag(DEFAULT_HEAD_PATH, help="the EAGLE-3 head")
    dtype: str = flag("bfloat16", help="dtype of weights and KV", choices=DTYPES)
    device: str = flag("cpu", help="auto, cpu, cuda or cuda:N")
    kernel_backend: str = flag("auto", help="kernels to run on", choices=KERNEL_BACKENDS)
    num_threads: int = flag(1, help="CPU threads of one operation")
    page_size: int = flag(16, help="tokens of one KV page")
    max_running_requests: int = flag(256, help="sessions at once")
    max_total_tokens: int | None = flag(None, help="tokens of draft KV; unset: what memory and sessions allow")
    mem_fraction_static: float = flag(
        0.15, help="share of a GPU's memory for all that the draft keeps there; a target's is 0.75"
    )
    context_length: int | None = flag(None, help="tokens of one session at most; unset: the target's")
    max_round_rows: int = flag(512, help="rows of one step that extend sessions which wait for a tree")
    max_bulk_rows: int | None = flag(
        None, help="rows of one step from prompts, flushes and replays, behind the others; unset: 64 on a CPU, else 256"
    )
    cuda_graph_shapes: str = flag(
        _GRAPH_SHAPES,
        help="on a GPU: steps,topk,tokens of each tree that is captured, which serves smaller ones, too; ';' between",
    )
    disable_cuda_graph: bool = flag(False, help="on a GPU: launch every kernel from the host")

    @property
    def graph_shapes(self) -> tuple[TreeShape, ...]:
        """Raises ConfigError for a shape that is none."""
        return tuple(_graph_shape(part) for part in self.cuda_graph_shapes.split(";") if part)

    @property
    def has_lanes(self) -> bool:
        """Whether rounds may travel beside gRPC: a lane is plaintext."""
        return self.server_tls() is None and not self.disable_round_lane

    @property
    def listeners(self) -> list[Listener]:
        """The ports that its flags name."""
        sides = {"round_port": self.round_port, "metrics_port": self.metrics_port, "health_port": self.health_port}
        return listeners_of(self.host, self.port, **sides)

    def __post_init__(self) -> None:
        self.check_service_flags()
        require(0 <= self.port < 65536, "port", self.port, "0 to 65535")
        require(0 <= self.round_port < 65536, "round_port", self.round_port, "0 to 65535")
        require(0 <= self.metrics_port < 65536, "metrics_port", self.metrics_port, "0 to 65535")
        require_apart(self.listeners)
        head = self.speculative_draft_model_path
        require(bool(head), "speculative_draft_model_path", "empty", "the folder of an EAGLE-3 head")
        require(self.drain_timeout_s >= 0, "drain_timeout_s", self.drain_timeout_s, "0 or more")
        for name in ("num_threads", "page_size", "max_running_requests", "max_round_rows"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("max_total_tokens", "context_length"):
            value = getattr(self, name)
            require(value is None or value >= 2, name, value, "at least 2, or unset")
        wait_ms = self.busy_wait_ms
        require(wait_ms is None or 0 <= wait_ms <= 1000, "busy_wait_ms", wait_ms, "0 to 1000, or unset")
        require(0 < self.mem_fraction_static < 1, "mem_fraction_static", self.mem_fraction_static, "between 0 and 1")
        if self.max_bulk_rows is not None:
            require(self.max_bulk_rows >= 1, "max_bulk_rows", self.max_bulk_rows, "at least 1, or unset")
            enough = self.max_round_rows >= self.max_bulk_rows
            require(enough, "max_round_rows", self.max_round_rows, f"at least --max-bulk-rows, {self.max_bulk_rows}")
        self.graph_shapes  # noqa: B018 - refuses what is no shape


def _graph_shape(text: str) -> TreeShape:
    try:
        num_steps, eagle_topk, num_draft_tokens = (int(number) for number in text.split(","))
        return TreeShape(num_steps, eagle_topk, num_draft_tokens)
    except ValueError as error:
        raise ConfigError(f"--cuda-graph-shapes: {text!r} is no shape; write three numbers, like 5,4,16") from error
    except InvalidInputError as error:
        raise ConfigError(f"--cuda-graph-shapes {text}: {error}") from error
