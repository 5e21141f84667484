"""TargetConfig: the flags of the target service."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.address import PORTS, parse_address
from paceline.config import flag, require
from paceline.defaults import DEFAULT_HEAD_PATH, DEFAULT_MODEL_PATH
from paceline.logs import LEVELS
from paceline.plumbing import ServiceFlags
from paceline.ports import Listener, listeners_of, require_apart
from paceline.threads import num_cores

DTYPES = ("bfloat16", "float16", "float32")
KERNEL_BACKENDS = ("auto", "triton", "flashinfer", "reference", "cpu")


@dataclass(frozen=True, slots=True)
class TargetConfig(ServiceFlags):
    """Runs a target model: decodes, verifies trees, samples.

    Raises ConfigError, naming the flag, for a value out of its range.
    """

    host: str = flag("127.0.0.1", help="address to listen on")
    port: int = flag(7200, help="port to listen on; 0 takes a free one")
    metrics_port: int = flag(0, help="port of the Prometheus metrics; 0 serves none")
    log_level: str = flag("info", help="least level that is logged", choices=LEVELS)
    drain_timeout_s: float = flag(30.0, help="seconds that running requests get to finish after SIGTERM")

    model_path: str = flag(DEFAULT_MODEL_PATH, help="folder or GGUF file of the target model")
    speculative_draft_model_path: str = flag(
        DEFAULT_HEAD_PATH, help="folder of the EAGLE-3 head whose fc fuses the features; empty: no speculation"
    )
    dtype: str = flag("bfloat16", help="dtype of weights, activations and KV", choices=DTYPES)
    device: str = flag("cpu", help="auto, cpu, cuda (a GPU for each rank) or cuda:N (that one)")
    base_gpu_id: int = flag(0, help="with --device cuda: the GPU of the first rank; the others take the next ones")
    tp_size: int = flag(1, help="ranks that share the model, those of all hosts")
    nnodes: int = flag(1, help="hosts that share the model, with as many ranks each")
    node_rank: int = flag(0, help="which of them this is; 0 serves, the others compute for it")
    dist_init_addr: str = flag("", help="with --nnodes: host:port of host 0, where the ranks meet")
    num_threads: int = flag(0, help="compute threads of each rank; 0: the cores divided by the ranks")
    kernel_backend: str = flag("auto", help="kernels to run on", choices=KERNEL_BACKENDS)

    page_size: int = flag(16, help="tokens of a KV page")
    chunked_prefill_size: int = flag(512, help="prompt tokens of one step at most")
    max_running_requests: int = flag(64, help="requests that run at once")
    max_rows_per_step: int = flag(2048, help="rows of one step at most, trees and prompt chunks together")
    max_total_tokens: int | None = flag(None, help="tokens that the KV pool holds; unset: from --mem-fraction-static")
    mem_fraction_static: float = flag(
        0.75, help="share of a GPU's memory for all that the target keeps there; a draft's is 0.15"
    )
    disable_cuda_graph: bool = flag(False, help="launch every step's kernels one by one; only useful on a GPU to debug")
    cuda_graph_max_rows: int = flag(
        1024, help="rows of the largest step that is captured as a CUDA graph; a larger one launches its kernels"
    )
    context_length: int | None = flag(None, help="tokens of a request, prompt and output; unset: the model's own")

    busy_wait_ms: float | None = flag(
        None,
        help="how long the engine's thread looks for the next trees without sleeping, which takes a core; unless 0, it "
        "does not sleep while a step verifies trees; unset: 10 on a GPU with 4 cores or more, else 0",
    )
    disable_overlap_schedule: bool = flag(
        False, help="one step at a time: no half of a round while the other is drafted, no plain step ahead"
    )
    speculative_tree_deadline_ms: float | None = flag(
        None, help="longest wait for a tree; unset: twice (expected accepted length - 1) x a plain step's time"
    )
    speculative_draft_timeout_s: float = flag(5.0, help="seconds without an answer after which a draft counts as lost")

    def __post_init__(self) -> None:
        self.check_service_flags()
        for name in (
            "tp_size",
            "nnodes",
            "page_size",
            "chunked_prefill_size",
            "max_running_requests",
            "cuda_graph_max_rows",
        ):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        self._check_hosts()
        rows = max(self.max_running_requests, self.chunked_prefill_size)
        require(self.max_rows_per_step >= rows, "max_rows_per_step", self.max_rows_per_step, f"at least {rows}")
        require(0 <= self.port < 2**16, "port", self.port, "0 to 65535")
        require(0 <= self.metrics_port < 2**16, "metrics_port", self.metrics_port, "0 to 65535")
        require_apart(self.listeners)
        require(self.base_gpu_id >= 0, "base_gpu_id", self.base_gpu_id, "0 or more")
        require(self.num_threads >= 0, "num_threads", self.num_threads, "0 (automatic) or more")
        require(self.drain_timeout_s >= 0, "drain_timeout_s", self.drain_timeout_s, "0 or more seconds")
        fraction = self.mem_fraction_static
        require(0 < fraction <= 1, "mem_fraction_static", fraction, "above 0, at most 1")
        for name in ("max_total_tokens", "context_length", "speculative_tree_deadline_ms"):
            value = getattr(self, name)
            require(value is None or value > 0, name, value, "above 0, or unset")
        wait_ms = self.busy_wait_ms
        require(wait_ms is None or 0 <= wait_ms <= 1000, "busy_wait_ms", wait_ms, "0 to 1000, or unset")
        timeout_s = self.speculative_draft_timeout_s
        require(timeout_s > 0, "speculative_draft_timeout_s", timeout_s, "above 0 seconds")

    @property
    def listeners(self) -> list[Listener]:
        """The ports that its flags name."""
        return listeners_of(self.host, self.port, metrics_port=self.metrics_port, health_port=self.health_port)

    @property
    def ranks_per_host(self) -> int:
        return self.tp_size // self.nnodes

    @property
    def own_ranks(self) -> range:
        """Those that this host computes."""
        first = self.node_rank * self.ranks_per_host
        return range(first, first + self.ranks_per_host)

    @property
    def threads_per_rank(self) -> int:
        """Compute threads of each rank."""
        return self.num_threads or max(1, num_cores() // self.ranks_per_host)

    def _check_hosts(self) -> None:
        hosts = self.nnodes
        require(self.tp_size % hosts == 0, "tp_size", self.tp_size, f"a multiple of --nnodes, {hosts}")
        require(0 <= self.node_rank < hosts, "node_rank", self.node_rank, f"0 to {hosts - 1}, below --nnodes")
        if hosts > 1:
            is_address = parse_address(self.dist_init_addr) is not None
            require(is_address, "dist_init_addr", self.dist_init_addr or "unset", f"host:port of host 0; {PORTS}")
        else:
            require(not self.dist_init_addr, "dist_init_addr", self.dist_init_addr, "unset without --nnodes")
